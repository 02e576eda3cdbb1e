"""The `flujo` command: quick to load, tells errors in a line or two, and ends with the codes of requirements §2.8 (SYS-29)."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from flujo_client.cli.main import cli
from flujo_client.cli.output import exit_code, show_json
from flujo_client.cli.plugins import ErrorHandlingGroup
from flujo_client.config.manager import ConfigManager
from flujo_client.contract.trace import TraceNode
from flujo_client.embedded.local import migrate
from flujo_client.errors import (
    ConfigurationError,
    FlujoError,
    MissingAgentError,
    PipelineContextInitializationError,
    PipelineError,
    RunFailed,
    SerializationError,
    ServiceUnreachable,
    SettingsError,
    WaitTimedOut,
)

NOWHERE = {
    "FLUJO_DATABASE_URL": "postgresql://me:secret@127.0.0.1:1/none",
    "FLUJO_BROKER_URL": "redis://:secret@127.0.0.1:1/0",
}


def flujo(*arguments, env=None, **rest):
    return CliRunner().invoke(cli, arguments, env={**NOWHERE, **(env or {})}, **rest)


@pytest.fixture
def plug_in(tmp_path, monkeypatch):
    """Install a distribution with one entry point in `flujo.commands`; give its name and its module's source."""

    def install(name, source):
        info = tmp_path / "other-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[flujo.commands]\n{name} = other_{name}:command\n")
        (tmp_path / f"other_{name}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)

    return install


def python(code, **rest):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, **rest)


def test_help_loads_no_heavy_library():
    """`flujo --help` is fast because it imports no command (SYS-29)."""
    code = """
import sys
from flujo_client.cli.main import cli
try:
    cli(["--help"])
except SystemExit:
    print(sorted({"celery", "kombu", "psycopg", "pydantic", "pydantic_ai", "flujo_worker"} & sys.modules.keys()))
"""
    ended = python(code)
    assert ended.stdout.splitlines()[-1] == "[]", ended.stderr


@pytest.mark.parametrize(
    "name", ["run", "enqueue", "status", "lens", "runs", "up", "worker", "beat", "migrate", "demo"]
)
def test_help_tells_every_command(name):
    """Every command is in the help, ours and the operators' (SYS-29)."""
    assert f"\n  {name} " in flujo("--help").stdout


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "enqueue",
        "status",
        "lens",
        "lens list",
        "lens show",
        "lens get",
        "lens trace",
        "lens spans",
        "lens stats",
        "lens evals",
        "lens watch",
        "lens from-file",
        "runs list",
        "runs cancel",
    ],
)
def test_every_command_explains_itself(command):
    """`--help` works below the top as well, and ends with 0 (§2.8)."""
    told = flujo(*command.split(), "--help")
    assert (told.exit_code, told.stdout.startswith(f"Usage: flujo {command} ")) == (0, True)


def test_version_is_that_of_the_distribution():
    """`--version` names the version (SYS-29)."""
    assert flujo("--version").stdout.startswith("flujo, version ")


def test_runs_list_is_lens_list():
    """`runs list` takes the options of `lens list` (SYS-29)."""
    of_lens, of_runs = (flujo(group, "list", "--help").stdout.partition("\n")[2] for group in ("lens", "runs"))
    assert of_lens == of_runs


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RunFailed("x"), 1),
        (WaitTimedOut("x"), 1),
        (FlujoError("x"), 1),
        (ValueError("x"), 1),
        (ConfigurationError("x"), 2),
        (SettingsError("x"), 2),
        (ServiceUnreachable("x"), 69),
        (PipelineError("x", code="UNKNOWN_REFERENCE"), 3),
        (PipelineError("x"), 4),
        (MissingAgentError("x"), 4),
        (PipelineContextInitializationError("x"), 4),
        (SerializationError("x"), 4),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_exit_codes(error, code):
    """0 ok, 1 runtime, 2 configuration, 3 import, 4 validation, 69 a service is away, 130 interrupt (§2.8)."""
    assert exit_code(error) == code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["valdate"], "No such command 'valdate'. Did you mean 'validate'?"),
        (["enqueue"], "Missing argument 'REFERENCE'"),
        (["enqueue", "a:b", "--metadata", "x"], "'x' must be written as key=value"),
        (["enqueue", "a:b", "--metadata", "=x"], "'=x' must be written as key=value"),
        (["enqueue", "a:b", "--priority", "10"], "10 is not in the range 0<=x<=9"),
        (["enqueue", "a:b", "--deadline", "0"], "0.0 is not in the range x>0"),
        (["enqueue", "a:b", "--max-tokens", "-1"], "-1 is not in the range x>=0"),
        (["enqueue", "a:b", "--max-tokens", "9" * 20], "Invalid value for --max-tokens"),
        (["run", "a:b", "--max-cost-usd", "nan"], "nan is not a number"),
        (["run", "a:b", "--timeout", "nan"], "nan is not a number"),
        (["runs", "cancel", "x", "--timeout", "nan"], "nan is not a number"),
        (["enqueue", "a:b", "--deadline", "nan"], "nan is not a number"),
        (["enqueue", "a:b", "--debounce", "nan"], "nan is not a number"),
        (["enqueue", "a:b", "--queue"], "Option '--queue' requires an argument"),
        (["run", "a:b", "--timeout", "-1"], "-1.0 is not in the range x>=0"),
        (["lens", "list", "--status", "asleep"], "'asleep' is not one of"),
        (["lens", "list", "--limit", "0"], "0 is not in the range 1<=x<=10000"),
        (["lens", "trace", "x", "--prompt-preview-len", "-2"], "-2 is not in the range x>=-1"),
        (["lens", "show", "x", "--timeout", "0"], "0.0 is not in the range"),
        (["lens", "stats", "--since", "0h"], "'0h' is not in the range"),
        (["lens", "stats", "--since", "nan"], "'nan' is neither a time until now"),
        (["lens", "list", "--metadata", "order"], "must be written as key=value"),
        (["lens", "list", "--metadata", "{order}"], "is not a JSON object"),
        (["runs", "retry"], "name one RUN, or select runs by filters"),
        (["runs", "retry", "x", "--status", "failed"], "name one RUN, or select runs by filters"),
        (["runs", "cancel", "x", "--dry-run"], "leave out the RUN"),
        (
            ["runs", "retry", "--since", "2h", "--idempotency-key", "k"],
            "--idempotency-key can be given with one RUN only",
        ),
        (["approvals", "approve"], "name one RUN, or select runs by filters"),
        (["lens", "spans", "x", "--status", "asleep"], "'asleep' is not one of"),
        (["lens", "from-file", "no-such-file"], "'no-such-file' does not exist"),
    ],
)
def test_wrong_usage_ends_with_2(arguments, said):
    """A command line that cannot be meant is refused before anything is asked (§2.8)."""
    told = flujo(*arguments)
    assert (told.exit_code, said in told.stderr, told.stdout) == (2, True, "")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["lens", "list"], 69, "SERVICE_UNREACHABLE Postgres does not answer at postgresql://me:***@127.0.0.1:1/none"),
        (["lens", "show", "run_1"], 69, "SERVICE_UNREACHABLE"),
        (["runs", "cancel", "run_1"], 69, "SERVICE_UNREACHABLE"),
        (["enqueue", "no colon"], 4, "PIPELINE 'no colon' is not a reference to a pipeline"),
        (["run", "json:loads"], 3, "IMPORT_FAILED calling the function 'json:loads' raised TypeError"),
    ],
)
def test_an_error_is_told_in_a_line_or_two(arguments, code, said):
    """No traceback, no password; what went wrong and the way out, on stderr (§2.8, U-42)."""
    told = flujo(*arguments, input="")
    assert (told.exit_code, told.stdout) == (code, "")
    assert told.stderr.startswith(said)
    assert len(told.stderr.splitlines()) <= 2
    assert "secret" not in told.stderr


def test_a_database_that_cannot_be_migrated_is_told_with_the_reason(monkeypatch):
    """What the process that migrates has said, and its way out, are those of `flujo up` too."""
    for name, url in NOWHERE.items():
        monkeypatch.setenv(name, url)
    with pytest.raises(ConfigurationError, match=r"could not be migrated: .*Postgres does not answer at") as refused:
        migrate(ConfigManager().settings())
    assert refused.value.suggestion.startswith("check FLUJO_DATABASE_URL")


def test_what_an_unexpected_error_quotes_is_told_without_secrets(plug_in):
    """Other packages quote URLs and keys; nor does the traceback show them (§2.8)."""
    said = "cannot use redis://:hunter2@cache/0 with api_key=hunter2"
    plug_in("leak", f"import click\n@click.command()\ndef command(): raise ValueError({said!r})\n")
    for arguments in (("leak",), ("--debug", "leak")):
        told = flujo(*arguments)
        assert (told.exit_code, "hunter2" in told.stderr, "redis://:***@cache" in told.stderr) == (1, False, True)


def test_debug_shows_the_traceback():
    """`--debug` shows how it came to an error; the code stays (§2.8)."""
    for place in (
        ("--debug", "enqueue", "no colon"),
        ("enqueue", "--debug", "no colon"),
        ("enqueue", "no colon", "--debug"),
    ):
        told = flujo(*place, input="")
        assert (told.exit_code, "Traceback (most recent call last)" in told.stderr) == (4, True)
    assert "Traceback" not in flujo("enqueue", "no colon", "--", "--debug", input="").stderr


@pytest.mark.large
@pytest.mark.processes
def test_a_shell_completes_commands():
    """As the reference says to set it up; click has the scripts."""
    environment = {**os.environ, "_FLUJO_COMPLETE": "bash_complete", "COMP_WORDS": "flujo do", "COMP_CWORD": "1"}
    program = str(Path(sys.executable).with_name("flujo"))
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "plain,doctor\n"


def test_settings_that_cannot_be_are_configuration_errors():
    """A variable that no one reads is refused with exit code 2 (§2.8)."""
    told = flujo("status", env={"FLUJO_BROKER_UR": "x"})
    assert (told.exit_code, "did you mean FLUJO_BROKER_URL?" in told.stderr) == (2, True)


def test_status_ends_with_69_when_something_is_down():
    """What could not be asked is null, problems is said, and no password is shown (SYS-29)."""
    told = flujo("status", "--json", "--timeout", "5")
    state = json.loads(told.stdout)
    assert (told.exit_code, state["ok"], state["schema"], state["workers"], state["backlog"]) == (
        69,
        False,
        None,
        None,
        None,
    )
    assert [(state[name]["ok"], "does not answer" in state[name]["error"]) for name in ("postgres", "redis")] == [
        (False, True),
        (False, True),
    ]
    assert "secret" not in told.output


def test_status_starts_no_embedded_services(tmp_path):
    """Asking whether services run must not start them (SYS-29)."""
    folder = tmp_path / "none"
    told = flujo("status", env={**dict.fromkeys(NOWHERE, ""), "FLUJO_EMBEDDED_DIR": str(folder)})
    assert (told.exit_code, folder.exists()) == (69, False)
    assert "no embedded services run in" in told.stdout


def test_a_command_joins_by_entry_point(plug_in):
    """The worker's commands come by entry points, and so may anyone's (SYS-29)."""
    plug_in("greet", "import click\n@click.command()\ndef command(): click.echo('hello')\n")
    assert flujo("greet").stdout == "hello\n"
    assert "\n  greet  From other_greet:command.\n" in flujo("--help").stdout


def test_a_command_whose_libraries_are_missing_says_what_to_install(plug_in):
    """Without the extra `worker` the operators' commands say so, and the others work (SYS-29)."""
    plug_in("part", "import no_such_library\n")
    told = flujo("part")
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr == (
        "WORKER_NOT_INSTALLED `flujo part` cannot run here: no module named 'no_such_library'\n"
        "  → pip install 'flujo-worker[worker]'\n"
    )


def test_without_the_workers_package_its_commands_say_so(monkeypatch):
    """The operators' commands are in the help of a bare client, and say what they need (SYS-29)."""
    monkeypatch.setattr("flujo_client.cli.plugins.entry_points", lambda **_: ())
    told = flujo("worker")
    assert (told.exit_code, "pip install 'flujo-worker[worker]'" in told.stderr) == (2, True)


def test_status_waits_no_longer_than_it_is_told():
    """A service that accepts and never answers is reported within `--timeout` seconds (§2.8)."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        place = f"127.0.0.1:{mute.getsockname()[1]}"
        urls = {"FLUJO_DATABASE_URL": f"postgresql://{place}/x", "FLUJO_BROKER_URL": f"redis://{place}/0"}
        began = time.monotonic()
        told = flujo("status", "--json", "--timeout", "0.2", env=urls)
    state = json.loads(told.stdout)
    assert (told.exit_code, state["postgres"]["error"]) == (69, "no answer within 0.2 s")
    assert state["redis"]["error"] == "no answer within 0.2 s"
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "command",
    [["list"], ["show", "x"], ["get", "x"], ["trace", "x"], ["spans", "x"], ["watch", "x"], ["stats"], ["evals"]],
    ids=" ".join,
)
def test_lens_waits_no_longer_than_it_is_told(command):
    """U-22: a server that accepts and never answers is given up after `--timeout` seconds, and that is said."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"postgresql://me:secret@127.0.0.1:{mute.getsockname()[1]}/x"
        began = time.monotonic()
        told = flujo("lens", *command, "--timeout", "0.2", env={"FLUJO_DATABASE_URL": url})
    assert (told.exit_code, told.stdout) == (69, "")
    assert told.stderr.startswith("SERVICE_UNREACHABLE Postgres gave no answer within 0.2 s\n  → ")
    assert time.monotonic() - began < 20


def test_the_patience_of_lens_can_be_set_for_all_commands():
    """FLUJO_LENS_TIMEOUT (§2.7)."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"postgresql://127.0.0.1:{mute.getsockname()[1]}/x"
        told = flujo("lens", "list", env={"FLUJO_DATABASE_URL": url, "FLUJO_LENS_TIMEOUT": "0.1"})
    assert "no answer within 0.1 s" in told.stderr


def test_a_trace_is_drawn_from_a_file(tmp_path):
    """§2.8: what `lens trace --json` wrote, with no service at hand."""
    trace = TraceNode(name="review", kind="run", status="succeeded", duration_s=1.5, attributes={"id": "run_1"})
    (file := tmp_path / "trace.json").write_text(trace.model_dump_json())
    drawn = "review  succeeded  1.50 s\nrun_1\n"
    assert [
        flujo("lens", "from-file", str(file)).stdout,
        flujo("lens", "from-file", "-", input=file.read_bytes()).stdout,
    ] == [drawn, drawn]


@pytest.mark.parametrize(
    ("text", "wrong"), [("{", "the document: Invalid JSON"), ('{"name": "x"}', "kind: Field required")]
)
def test_a_file_without_a_trace_is_refused(text, wrong):
    """What is wrong is named, and how such a file is made."""
    told = flujo("lens", "from-file", "-", input=text)
    assert (told.exit_code, told.stdout) == (1, "")
    assert told.stderr.startswith(f"NO_TRACE - does not contain a trace: {wrong}")


def group_of(act, **rest):
    group = ErrorHandlingGroup(name="g", **rest)
    group.add_command(click.Command("act", callback=act))
    return group


def test_an_unexpected_error_of_a_worker_keeps_its_traceback():
    """A group without --debug hides nothing: its output is a log (SYS-29)."""

    def act():
        raise ZeroDivisionError

    assert isinstance(CliRunner().invoke(group_of(act), ["act"]).exception, ZeroDivisionError)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, click.Abort])
def test_an_interrupt_is_quiet(interrupt):
    """Ctrl-C ends with 130 and without a word (§2.8)."""

    def act():
        raise interrupt

    told = CliRunner().invoke(group_of(act), ["act"])
    assert (told.exit_code, told.output.strip()) == (130, "")


def test_a_broken_pipe_is_quiet():
    """Whoever reads no further, as `head` does, gets no complaint (§2.8)."""
    code = """
import click
from flujo_client.cli.output import show_json
from flujo_client.cli.plugins import ErrorHandlingGroup
group = ErrorHandlingGroup(name="g")
group.add_command(click.Command("act", callback=lambda: show_json(["x" * 100] * 10_000)))
group(["act"])
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (130, b"")


def test_json_is_not_cut(capsys):
    """A program gets all it asked for, however long a trace is (SYS-29)."""
    show_json([{"event": number} for number in range(30_000)])
    assert json.loads(capsys.readouterr().out)[-1] == {"event": 29_999}


@pytest.mark.parametrize("interrupted", ["raise", "exec"])
@pytest.mark.parametrize(
    "start",
    [
        "from flujo_client.cli.entry import main; main()",
        "import runpy; runpy.run_module('flujo_worker', run_name='__main__')",
    ],
)
def test_ctrl_c_while_modules_are_imported_is_quiet(tmp_path, start, interrupted):
    """A command imports for most of a second: exit code 130 and no traceback, also out of an `exec` such as a dataclass's (§2.8)."""
    sends = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "click.py").write_text(sends if interrupted == "raise" else f"exec({sends!r})")
    done = subprocess.run(
        [sys.executable, "-c", start, "up"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "")
