"""The commands against real services and one real worker process: enqueue, status, lens, runs cancel, run (SYS-29)."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from flujo_client.cli.main import cli
from flujo_client.errors import WaitTimedOut
from flujo_client.gateway import requests
from flujo_client.gateway.door import SCHEMA
from flujo_worker.testing import LocalEngine, RecordedRun
from tests.support.fleet import Site, wait_until, whole_lines
from tests.support.junk import JUNK, push
from tests.support.services import passable_folder, remove_folder

pytestmark = [pytest.mark.services, pytest.mark.acceptance]

PIPELINES = """
import asyncio
import logging
from flujo_client import HumanInTheLoopStep, Pipeline, Step, StepConfig, ValidationResult
from flujo_worker.agents import make_agent_async
from pydantic import BaseModel

class Topic(BaseModel):
    topic: str

def upper(data):
    return data.upper()

def measure(data):
    return {"text": data, "length": len(data)}

def measure_any(data):
    return {"said": data}

def fail(data):
    raise ValueError("nothing useful")

def talk(data):
    print("about", data)
    logging.getLogger("shop").warning("slow %s", data)
    print("key sk-abcdefghijklmnop")
    return data

async def wait(data):
    await asyncio.sleep(60)

def is_short(said):
    return ValidationResult(is_valid=len(said) < 4, feedback=None if len(said) < 4 else f"{len(said)} letters")

judged = Pipeline([Step("say", str.lower, validators=[is_short], strict_validation=False)])
talkative = Pipeline([Step("talk", talk)])
shout = Pipeline([Step("upper", upper), Step("measure", measure)])
hang = Pipeline([Step("upper", upper), Step("wait", wait)])
broken = Pipeline([Step("upper", upper), Step("check", fail, config=StepConfig(max_retries=1, backoff={"base_s": 0}))])
typed = Pipeline([Step("upper", upper)], context_model=Topic)
behind = StepConfig(max_retries=0, execution_mode="background")
aside = Pipeline([Step("upper", upper), Step("later", fail, config=behind), Step("measure", measure)])
outer = Pipeline([Step("upper", upper), Pipeline([HumanInTheLoopStep("inside", "really?")], name="in").as_step("child", own_run=True)])
asks = Pipeline([Step("ask", make_agent_async("local:mock", "Be brief."))])
asking = Pipeline([HumanInTheLoopStep("ask", "go\\x1b[2J?", input_schema=bool), Step("measure", measure_any)])
"""


@pytest.fixture(scope="module")
def code():
    """A folder with the pipelines that clients and workers import."""
    folder = passable_folder()
    (folder / "cli_pipelines.py").write_text(PIPELINES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    remove_folder(folder)


@pytest.fixture(scope="module")
def site(services, code):
    """A migrated database with one worker process, which has said what it consumes."""
    with Site(services, code) as site:
        site.workers(code=code)
        wait_until(lambda: all(worker.queues for worker in site.client.ask(requests.workers())), what=site.log)
        yield site


@pytest.fixture(scope="module")
def flujo(site):
    """Call a command; what it printed and how it ended."""
    environment = {**site.settings.as_environment(), "FLUJO_INPUT": None}

    def call(*arguments, code=0, env=None, **rest):
        told = CliRunner().invoke(cli, arguments, env=environment | (env or {}), **{"input": "", **rest})
        assert told.exit_code == code, told.output
        return told

    return call


@pytest.fixture
def read(flujo):
    """Call a command with --json and read what it printed."""
    return lambda *arguments, **rest: json.loads(flujo(*arguments, "--json", **rest).stdout)


@pytest.fixture(scope="module")
def failed(flujo):
    """The id of a run that failed."""
    return json.loads(flujo("run", "cli_pipelines:broken", "-i", "x", "--json", code=1).stdout)["id"]


def test_lens_replay_decides_a_run_again(flujo, site):
    """Design §6: nothing is called and nothing written; a run that was decided otherwise is told, with exit code 1."""
    run = flujo("enqueue", "cli_pipelines:shout", "--input", "quiet").stdout.strip()
    site.client.get_run(run).result(timeout=60)
    assert flujo("lens", "replay", run).stderr == f"{run}: 2 decisions, all as recorded\n"
    with site.connection() as connection:
        connection.execute(
            "UPDATE flujo_attempts SET status = 'failed', reason = 'lost', ended_at = now() WHERE key = %s",
            [f"{run}::upper:1"],
        )
    told = json.loads(flujo("lens", "replay", run[:-2], "--json", code=1).stdout)
    assert told == {
        "run": run,
        "notices": 1,
        "key": f"{run}::measure:1",
        "difference": f"no decision leads to {run}::measure:1 any more",
    }
    with site.connection() as connection:
        connection.execute("DELETE FROM flujo_attempts WHERE run_id = %s", [run])
    assert "its work rows have been deleted" in flujo("lens", "replay", run, code=1).stderr


def test_run_prints_the_output_and_nothing_else(flujo):
    """stdout is the output; progress and steps are talk (SYS-29)."""
    told = flujo("run", "cli_pipelines:shout", input="piped\n")
    assert json.loads(told.stdout) == {"text": "PIPED", "length": 5}
    assert "measure  succeeded" in told.stderr


def test_run_without_steps_and_with_text(flujo):
    """A text is printed as it is (SYS-29)."""
    told = flujo("run", "cli_pipelines:typed", "-i", "a\x1bb", "-d", '{"topic": "bees"}', "--no-steps")
    assert told.stdout == "A\x1bB\n"
    assert "upper  succeeded" not in told.stderr


def test_run_takes_an_id_and_finds_the_run_again(flujo):
    """§2.8 `--run-id`: the same id is the same run; for other work it is refused."""
    arguments = ("run", "cli_pipelines:shout", "--run-id", "of-mine", "-i")
    assert "of-mine enqueued" in (first := flujo(*arguments, "x")).stderr
    again = flujo(*arguments, "x")
    assert "of-mine was enqueued before" in again.stderr
    assert again.stdout == first.stdout
    assert "IDEMPOTENCY_CONFLICT run of-mine exists" in flujo(*arguments, "another", code=1).stderr


@pytest.mark.parametrize(
    ("form", "printed"),
    [
        ("auto", '{\n  "text": "X",\n  "length": 1\n}\n'),
        ("raw", "{'text': 'X', 'length': 1}\n"),
        ("json", '{\n  "text": "X",\n  "length": 1\n}\n'),
        ("yaml", "text: X\nlength: 1\n"),
        ("md", '```json\n{\n  "text": "X",\n  "length": 1\n}\n```\n'),
    ],
)
def test_run_prints_the_output_in_a_format(flujo, form, printed):
    """§2.8 `--final-output-format`."""
    assert flujo("run", "cli_pipelines:shout", "-i", "x", "--final-output-format", form).stdout == printed


def test_run_tells_the_context_or_the_steps_alone(flujo):
    """§2.8 `--show-context`, `--only-steps`, `--context-model`."""
    told = flujo("run", "cli_pipelines:typed", "-i", "x", "-d", '{"topic": "bees"}', "--show-context", "--only-steps")
    assert told.stdout == ""
    assert '{\n  "topic": "bees"\n}\n' in told.stderr
    assert "upper  succeeded" in told.stderr
    made = flujo("run", "cli_pipelines:shout", "-i", "x", "-c", "cli_pipelines:Topic", "-d", '{"topic": "bees"}')
    assert json.loads(made.stdout)["length"] == 1
    refused = flujo("run", "cli_pipelines:shout", "-i", "x", "-c", "cli_pipelines:upper", code=2)
    assert "'cli_pipelines:upper' is not a pydantic model" in refused.stderr


def test_a_dry_run_checks_and_lists_and_records_nothing(flujo, site, code):
    """§2.8 `--dry-run`: no service is needed for it."""
    before = len(site.client.list_runs(limit=1000))
    nowhere = {"FLUJO_DATABASE_URL": "postgresql://127.0.0.1:1/none", "FLUJO_BROKER_URL": "redis://127.0.0.1:1/0"}
    told = flujo("run", "cli_pipelines:outer", "--dry-run", env=nowhere)
    assert told.stdout == "upper  step\nchild  nested\nchild/body/inside  human\n"
    assert "nothing was run" in told.stderr
    refused = flujo("run", "cli_pipelines:upper", "--dry-run", env=nowhere, code=3)
    assert "IMPORT_FAILED" in refused.stderr
    assert len(site.client.list_runs(limit=1000)) == before


def test_run_and_lens_show_give_the_same_json(read):
    """One shape for a run, whoever shows it (SYS-29)."""
    ran = read("run", "cli_pipelines:typed", "-i", "x", "-d", '{"topic": "bees"}')
    assert (ran["status"], ran["output"], ran["context"]) == ("succeeded", "X", {"topic": "bees"})
    assert read("lens", "show", ran["id"], "--show-output") == ran


def test_a_run_that_failed_ends_with_1(flujo):
    """The error is told in a line, with the original class (§2.8, U-42)."""
    told = flujo("run", "cli_pipelines:broken", "-i", "x", code=1)
    assert told.stdout == ""
    last = told.stderr.splitlines()[-1]
    assert last.startswith("RUN_FAILED run run_")
    assert last.endswith("failed: ValueError: nothing useful")
    assert "Traceback (most recent call last):" in told.stderr
    assert re.search(
        r'File ".*cli_pipelines.py", line \d+, in fail\n    raise ValueError\("nothing useful"\)', told.stderr
    )
    assert "flujo_worker" not in told.stderr


def test_run_shows_what_steps_print_and_log(flujo, read):
    """On stderr, with the step's name; afterwards `lens show --logs` has it too."""
    told = flujo("run", "cli_pipelines:talkative", "-i", "bees")
    assert told.stdout == "bees\n"
    lines = ["[talk] about bees", "[talk] WARNING shop: slow bees", "[talk] key sk-***"]
    assert [each for each in told.stderr.splitlines() if each.startswith("[")] == lines
    assert read("lens", "show", "last", "--logs")["logs"] == lines
    assert "\n  [talk] about bees" in flujo("lens", "show", "last", "--logs").stdout


def test_the_workers_log_has_it_too_and_the_failures(site, flujo):
    """With run and step, so that a line leads to its run."""
    flujo("run", "cli_pipelines:talkative", "-i", "bees")
    broken = flujo("run", "cli_pipelines:broken", "-i", "x", code=1).stderr.split()[0]

    def logged(event, **what):
        found = [json.loads(line) for line in whole_lines(site.folder / "workers.log") if line.startswith("{")]
        return [each for each in found if each["event"] == event and what.items() <= each.items()]

    [*_, printed] = logged("step.printed", text="about bees")
    assert (printed["step"], printed["level"]) == ("talk", "info")
    [run] = wait_until(lambda: logged("run failed", run=broken), what=site.log)  # its worker logs it after the merge
    tries = logged("attempt failed", run=broken)
    assert [(each["step"], each["attempt"], each["level"], each["error"]) for each in tries] == [
        ("check", 1, "warning", "ValueError"),
        ("check", 2, "warning", "ValueError"),
    ]
    assert all(each["exception"].endswith("ValueError: nothing useful\n") for each in tries)
    assert (run["level"], run["message"]) == ("error", "nothing useful")


def test_run_gives_up_waiting(flujo, read):
    """`--timeout` ends the waiting, not the run; meanwhile the current step is told (SYS-29)."""
    told = flujo("run", "cli_pipelines:hang", "-i", "x", "--timeout", "4", code=1)
    assert "WAIT_TIMED_OUT" in told.stderr
    assert "  wait running\n" in told.stderr
    run = told.stderr.split()[0]
    assert read("lens", "show", run)["status"] == "running"
    flujo("runs", "cancel", run)


def test_enqueue_prints_the_id_of_the_run(flujo, read):
    """All that is asked for goes with the run (SYS-29)."""
    options = ("--tenant", "acme", "--priority", "3", "--deadline", "600", "--metadata", "a=1", "--metadata", "b=x=y")
    run = flujo("enqueue", "cli_pipelines:shout", "-i", "x", *options).stdout.strip()
    shown = read("lens", "show", run, "--show-input")
    assert (shown["tenant"], shown["metadata"], shown["input"]) == ("acme", {"a": "1", "b": "x=y"}, "x")
    assert shown["deadline_at"] is not None


def test_a_run_is_one_of_its_key_the_last_of_its_input_or_one_of_its_period(flujo, read):
    """SYS-29: `--singleton-key`, `--debounce` and `--throttle`."""

    def enqueued(*options):
        return read("enqueue", "cli_pipelines:hang", "-i", "x", *options)

    one, same = (enqueued("--singleton-key", "nightly") for _ in range(2))
    assert (same["id"], one["is_new"], same["is_new"]) == (one["id"], True, False)
    behind = enqueued("--singleton-key", "nightly", "--singleton", "queue")
    earlier, later = (enqueued("--debounce", "600", "--debounce-key", "d") for _ in range(2))
    first, second = (enqueued("--throttle", "1/600") for _ in range(2))
    waits = {each["id"]: read("lens", "show", each["id"])["waits_for"] for each in (behind, later, first, second)}
    assert "singleton 'nightly'" in waits[behind["id"]]
    assert "debounce 'd'" in waits[later["id"]]
    assert waits[first["id"]] is None
    assert "throttle ''" in waits[second["id"]]
    assert "replaced by run" in read("lens", "show", earlier["id"])["reason"]
    assert {each["name"].split()[0] for each in read("status")["gates"]} == {"singleton", "debounce", "throttle"}
    for each in (one, behind, later, first, second):
        flujo("runs", "cancel", each["id"])
    wait_until(lambda: read("status")["gates"] == [], what="a cancelled run waits")
    refused = flujo("enqueue", "cli_pipelines:hang", "-i", "x", "--throttle", "often", code=2)
    assert "'often' must be a number of runs and seconds, such as 100/60" in refused.stderr


def test_limits_go_with_the_run(flujo, read):
    """Both flags of `enqueue` and `run`; what is spent of a budget is shown with the run."""
    limits = ("--max-cost-usd", "0.5", "--max-tokens", "1000")
    ran = read("run", "cli_pipelines:shout", "-i", "x", *limits)
    [budget] = ran["budgets"]
    assert (budget["scope"], budget["limit_usd"], budget["limit_tokens"]) == (f"run:{ran['id']}", 0.5, 1000)
    assert "budget     $0 of $0.5 spent; 0 of 1,000 tokens spent" in flujo("lens", "show", ran["id"]).stdout


def test_status_shows_the_tenants_that_are_near_their_limit(flujo, read, site):
    """Of today, the fullest first, and no line for each run."""
    rows = [
        ("tenant:near:", 0, 0.9, None, 0, 0.05),
        ("tenant:full:", 0, None, 100, 100, 0),
        ("tenant:far:", 0, 1.0, None, 0, 0.5),
        ("tenant:before:", 1, 1.0, None, 0, 1.0),
    ]
    with site.connection() as connection:
        for scope, days, usd, tokens, spent_tokens, spent_usd in rows:
            connection.execute(
                "INSERT INTO flujo_budgets (scope, limit_usd, limit_tokens, settled_tokens, settled_usd, reserved_usd) "
                "VALUES (%s || to_char(now() AT TIME ZONE 'UTC' - make_interval(days => %s), 'YYYY-MM-DD'), %s, %s, %s, %s, %s)",
                [scope, days, usd, tokens, spent_tokens, spent_usd, 0.7 if scope == "tenant:near:" else 0],
            )
    near = [each["scope"].split(":")[1] for each in read("status")["budgets"]]
    assert near == ["full", "near"]
    assert "tenant:full:" in flujo("status").stdout
    site.rows("DELETE FROM flujo_budgets WHERE starts_with(scope, 'tenant:') RETURNING scope")


def test_enqueue_under_the_same_key(flujo, read):
    """The same key gives the same run, and is refused for other work (M-010)."""
    arguments = ("enqueue", "cli_pipelines:shout", "--idempotency-key", "k-1", "-i")
    first, again = read(*arguments, "x"), read(*arguments, "x")
    assert (first["is_new"], again) == (True, {"id": first["id"], "is_new": False})
    assert flujo(*arguments, "other", code=1).stderr.startswith("IDEMPOTENCY_CONFLICT")


def test_enqueue_makes_a_run_of_each_line(flujo, read, site, tmp_path):
    """M-010, SYS-29: ids in the order of the lines; options and context are common to all."""
    file = tmp_path / "lines.jsonl"
    file.write_text('"a"\n\n"b"\n"c"')
    common = ("cli_pipelines:typed", "-d", '{"topic": "bees"}', "--metadata", "a=1")
    runs = flujo("enqueue", *common, "--input-jsonl", str(file)).stdout.split()
    assert [site.client.get_run(run).result(timeout=60).output for run in runs] == ["A", "B", "C"]
    assert read("lens", "show", runs[0])["metadata"] == {"a": "1"}
    piped = read("enqueue", *common, "--input-jsonl", "-", input='"d"\n')
    assert [(site.client.get_run(each["id"]).result(timeout=60).output, each["is_new"]) for each in piped] == [
        ("D", True)
    ]


@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        ('"a"', ("--input", "x"), "--input and --input-jsonl are alternatives"),
        ('"a"', ("--idempotency-key", "k"), "--idempotency-key works for one run only"),
        ('"a"\n{\n', (), "--input-jsonl, line 2: is not JSON"),
    ],
)
def test_lines_that_cannot_be_enqueued_make_no_run(flujo, site, lines, options, said):
    before = site.rows("SELECT count(*) FROM flujo_runs")
    told = flujo("enqueue", "cli_pipelines:shout", "--input-jsonl", "-", *options, input=lines, code=2)
    assert said in " ".join(told.stderr.split())
    assert site.rows("SELECT count(*) FROM flujo_runs") == before


@pytest.mark.parametrize("reference", ["cli_pipelines:nope", "no_such_module:pipeline"])
def test_an_unknown_reference_ends_with_3(flujo, reference):
    """What cannot be imported is named (§2.8)."""
    told = flujo("enqueue", reference, code=3)
    assert told.stderr.startswith(f"UNKNOWN_REFERENCE pipeline '{reference}' not found")


def test_a_context_that_does_not_fit_ends_with_4(flujo):
    """What is wrong with the context is said, and nothing is recorded (§2.8)."""
    told = flujo("enqueue", "cli_pipelines:typed", "-d", '{"topic": 1}', code=4)
    assert "the context does not fit Topic: topic:" in told.stderr


def test_status(flujo, read):
    """Services, schema, workers, backlog and owed calls of hooks, without the password (SYS-29)."""
    state = read("status")
    assert state["owed_hooks"] == {"count": 0, "oldest_s": None}
    assert (state["limits"], state["gates"], state["breakers"], state["locks"]) == ([], [], [], [])
    assert (state["ok"], state["schema"], len(state["workers"])) == (True, SCHEMA, 1)
    assert list(state["backlog"]) == ["ready", "queued", "running", "sleeping", "for_events"]
    assert [line.split()[:2] for line in flujo("status").stdout.splitlines()[:1]] == [["postgres", "ok"]]


def test_status_shows_why_a_worker_takes_fewer_attempts(site, flujo, read):
    """The worker's last word counts: slowed down, or recovered."""
    site.rows(
        "INSERT INTO flujo_workers (id, host, pid, build, slots, lease_until, started_at) "
        "VALUES ('late-1', 'late', 1, '1', 500, now() + interval '1 hour', now()) RETURNING id"
    )
    slowed = {"at_once": 8, "of": 500, "late": 45, "waited_for_cpu": 40}
    line = (
        "late-1 takes 8 of 500 attempts at once: its event loop was late for 45 % of a second, 40 % of it without a CPU"
    )
    try:
        for name, data, shown in (("worker.slowed", slowed, slowed), ("worker.recovered", {"at_once": 500}, None)):
            site.rows(
                "INSERT INTO flujo_events (name, data) VALUES (%(name)s, %(data)s::jsonb) RETURNING id",
                name=name,
                data=json.dumps({**data, "worker": "late-1"}),
            )
            [worker] = [each for each in read("status")["workers"] if each["id"] == "late-1"]
            assert worker["slowed"] == shown
            assert (line in " ".join(flujo("status").stdout.split())) == (shown is not None)
    finally:
        site.rows("DELETE FROM flujo_workers WHERE id = 'late-1' RETURNING id")


def test_status_counts_only_workers_that_consume_our_queues(site, read, flujo, code):
    """A worker of other queues runs nothing of ours; each says how many attempts it runs at once."""
    fleet = site.workers(arguments=("-Q", "shop", "-c", "3"), code=code)
    try:
        state = wait_until(lambda: (found := read("status"))["other_workers"] and found, what=site.log)
        assert [worker["queues"] for worker in state["workers"]] == [["flujo.attempts", "flujo.control"]]
        assert "500 slots; 1 process more on other queues" in " ".join(flujo("status").stdout.split())
        run = flujo("enqueue", "cli_pipelines:shout", "-i", "x", "--queue", "shop").stdout.strip()
        site.client.get_run(run).result(timeout=60)
        assert max(worker["slots"] for worker in read("status")["workers"]) == 500
    finally:
        fleet.kill()


def test_a_queue_that_no_one_consumes_is_told(flujo, site, caplog):
    """Instead of waiting silently: by `flujo enqueue` at once, by `flujo run` and `result()` after some seconds and at the timeout."""
    told = flujo("enqueue", "cli_pipelines:shout", "-i", "x", "--queue", "gpu")
    assert "the run waits: waits at upper: no worker consumes queue gpu" in told.stderr
    run = site.client.get_run(told.stdout.strip())
    with pytest.raises(
        WaitTimedOut, match=r"still queued after 5.5 s; waits at upper: no worker consumes queue gpu"
    ) as timed_out:
        run.result(timeout=5.5)
    assert "flujo worker -Q gpu" in timed_out.value.suggestion
    assert [f"run {run.id} makes no progress" in each.message for each in caplog.records if "api" in each.name] == [
        True
    ]
    run.cancel()


def test_doctor_says_what_will_not_work_and_the_line_to_change(site, flujo, read, monkeypatch, tmp_path):
    """A queue that no one consumes, code that no worker has, and a Redis that evicts; the worst finding is the exit code."""
    (tmp_path / "cli_unknown.py").write_text(PIPELINES)
    monkeypatch.syspath_prepend(tmp_path)
    waits = flujo("enqueue", "cli_pipelines:shout", "-i", "x", "--queue", "nobodys").stdout.strip()
    parked = flujo("enqueue", "cli_unknown:shout", "-i", "x").stdout.strip()
    wait_until(lambda: site.client.get_run(parked).status() == "parked", what=site.log)
    found = read("doctor", code=1)
    errors = {each["thing"]: each for each in found["findings"] if each["level"] == "error"}
    assert found["worst"] == "error"
    assert errors["queues"]["change"] == "flujo worker -Q nobodys"
    assert "of cli_unknown:shout" in errors["pipelines"]["what"]
    assert {"signing keys", "settings"} <= {each["thing"] for each in found["findings"] if each["level"] == "warning"}
    told = flujo("doctor", code=1)
    assert all(len(line.rstrip()) <= 80 for line in told.stdout.splitlines())
    assert "→ flujo worker -Q nobodys" in told.stdout
    for run in (waits, parked):
        site.client.get_run(run).cancel()
    assert not [each for each in read("doctor")["findings"] if each["level"] == "error"]
    flujo("doctor", "--fail-on-warn", code=1)


def test_doctor_names_privileges_that_the_role_lacks(site, flujo):
    with site.connection() as connection:
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    url = site.settings.database().replace("postgres@", "reader@", 1)
    try:
        told = json.loads(flujo("doctor", "--json", code=1, env={"FLUJO_DATABASE_URL": url}).stdout)
        [grants] = [each for each in told["findings"] if each["thing"] == "grants"]
        assert "the role lacks" in grants["what"]
        assert "INSERT on flujo_" in grants["what"] or "DELETE on flujo_" in grants["what"]
    finally:
        with site.connection() as connection:
            connection.execute("DROP OWNED BY reader")
            connection.execute("DROP ROLE reader")


def test_status_counts_refused_messages(site, flujo, read):
    """SYS-27, SYS-29: how many, why, and how to look at them."""
    before = read("status")["refused"]
    push(site.redis, "flujo.attempts", [JUNK["a number"], JUNK["deep nesting"]])
    wait_until(lambda: read("status")["refused"]["count"] == before["count"] + 2, what=site.log)
    refused = read("status")["refused"]
    assert refused["reasons"]["malformed"] == before["reasons"].get("malformed", 0) + 2
    assert (refused["kept"], refused["key"]) == (before["kept"] + 2, "flujo:dead_letters")
    told = " ".join(flujo("status").stdout.split())
    assert "malformed; look: redis-cli lrange flujo:dead_letters 0 9" in told


def test_lens_list_filters(read, failed):
    """By status, and by the pipeline's name or reference (§2.8)."""
    assert {run["status"] for run in read("lens", "list", "--status", "failed")} == {"failed"}
    for name in ("broken", "cli_pipelines:broken"):
        assert failed in [run["id"] for run in read("runs", "list", "--pipeline", name)]
    assert len(read("lens", "list", "--limit", "1")) == 1


def test_background_steps_are_listed_with_who_launched_them(site, flujo, read):
    """U-16."""
    run = site.client.enqueue("cli_pipelines:aside", "bees")
    run.result(timeout=60)
    [task] = wait_until(lambda: site.client.get_failed_background_tasks(run.id), what=site.log)
    [listed] = read("runs", "list", "--background", "--parent", run.id)
    assert (listed["id"], listed["parent"], listed["status"], listed["background"]) == (task.id, run.id, "failed", True)
    assert f"of {run.id}" in flujo("runs", "list", "--background").stdout
    assert f"background of  {run.id}" in flujo("lens", "show", task.id).stdout
    assert read("runs", "list", "--background", "--status", "succeeded") == []


def test_lens_list_says_that_there_is_nothing(flujo):
    """An empty list is not an error (SYS-29)."""
    told = flujo("lens", "list", "--pipeline", "nobody's")
    assert (told.stdout, told.stderr) == ("", "no matching runs\n")


def test_lens_show(flujo, failed):
    """A run at a glance, found by the beginning of its id (§2.8)."""
    shown = flujo("lens", "show", failed[:-2], "--show-input", "--show-output", "--show-error", "-v").stdout
    expected = ("broken  failed", failed, "step 'check' failed", "input\n  x", "output\n  none", "type      ValueError")
    assert [each for each in expected if each not in shown] == []
    assert re.search(r'traceback of check:1\n  Traceback .*\n    File ".*cli_pipelines.py", line \d+, in fail', shown)


def test_lens_needs_a_key_only_where_it_shows_the_value(flujo, site):
    """`lens list` works without any; `show --show-output` and the like name the key that is missing."""
    run = flujo("enqueue", "cli_pipelines:shout", "--input", "quiet").stdout.strip()
    site.client.get_run(run).result(timeout=60)
    sealed = b"e\x02k1sealed"
    with site.connection() as connection:
        connection.execute("UPDATE flujo_runs SET input = %s, output = %s WHERE id = %s", [sealed, sealed, run])
        connection.execute("UPDATE flujo_attempts SET output = %s WHERE run_id = %s", [sealed, run])
    assert "shout  succeeded" in flujo("lens", "show", run).stdout
    assert "encrypted with the key 'k1', which `value_keys` lacks here" in " ".join(
        flujo("lens", "trace", run).stdout.split()
    )
    for option in ("--show-input", "--show-output", "--final-output", "-v"):
        assert "KEY_MISSING" in flujo("lens", "show", run, option, code=4).stderr


def test_lens_show_json_has_the_traceback(read, failed):
    assert read("lens", "show", failed)["error"]["traceback"].endswith("ValueError: nothing useful\n")


def test_a_run_is_named_by_its_end_and_the_newest_by_nothing(flujo, read):
    """No more than the end is to be typed, and nothing for the run just made; a child run is never meant."""
    told = flujo("run", "cli_pipelines:shout", "-i", "first")
    first = told.stderr.split()[0]
    assert told.stderr.splitlines()[-1] == f"trace: flujo lens trace {first[-8:]}"
    assert read("lens", "show", first[-8:])["id"] == first
    second = flujo("run", "cli_pipelines:shout", "-i", "second").stderr.split()[0]
    for named in ([], ["last"], ["-1"]):
        assert read("lens", "show", *named)["id"] == second
        assert second in flujo("lens", "trace", *named).stdout
    assert read("lens", "show", "-2")["id"] == first
    assert "begins or ends with 'zz'" in flujo("lens", "spans", "zz", code=1).stderr
    assert "No such option '--nope'" in flujo("lens", "show", "--nope", code=2).stderr


def test_took_counts_the_step_and_not_the_wait_for_a_worker(site, read, code):
    """A step that waits long for its worker has not taken long."""
    run, began = site.client.enqueue("cli_pipelines:shout", "x", queue="late"), time.monotonic()
    time.sleep(1.5)
    fleet = site.workers(arguments=("-Q", "late"), code=code)
    waited_s = time.monotonic() - began - 1.0  # the worker may take the run shortly before `workers` returns
    try:
        run.result(timeout=60)
        assert site.client.get_run(run.id).trace().children[0].duration_s < waited_s
    finally:
        fleet.kill()


def test_lens_show_prompt(flujo, read):
    """What a model was sent, and that secrets are hidden (§2.9)."""
    ran = read("run", "cli_pipelines:asks", "-i", "a sk-proj-abcdefghijklmnop key")
    told = flujo("lens", "show", ran["id"], "--prompt")
    assert "ask:1  system prompt\n  Be brief." in told.stdout
    assert "ask:1  prompt\n  a sk-*** key" in told.stdout
    assert "secrets, and the fields of `[log] redact`, are hidden" in told.stderr
    shown = read("lens", "show", ran["id"], "--prompt")
    assert [each["what"] for each in shown["prompts"]] == ["system prompt", "prompt", "response"]


def test_lens_trace_is_what_the_client_gives(site, flujo, read, failed):
    """The command and the client show the same tree (M-291)."""
    assert read("lens", "trace", failed) == site.client.get_run(failed).trace().model_dump()
    drawn = flujo("lens", "trace", failed).stdout
    assert "attempt 2  failed" in drawn
    assert "Agent execution failed with ValueError: nothing useful" in drawn
    assert drawn.count("in fail") == 1  # once for both attempts


def test_lens_get_finds_a_run_by_any_part_of_its_id(flujo, read, failed):
    """§2.8: a log may have cut it; what several runs have is refused."""
    assert read("lens", "get", failed[14:-1]) == read("lens", "show", failed)
    flujo("enqueue", "cli_pipelines:shout", "-i", "x")
    assert flujo("lens", "get", failed[4:8], code=1).stderr.startswith(f"AMBIGUOUS_RUN '{failed[4:8]}' matches several")
    assert "no run id contains 'nowhere'" in flujo("lens", "get", "nowhere", code=1).stderr


def test_lens_get_finds_a_child_run_by_its_own_part(site, flujo, read):
    """A part of the parent's id means the parent, though the child's begins with it."""
    run = site.client.enqueue("cli_pipelines:outer", "x")
    [child] = wait_until(run.children, what=site.log)
    assert read("lens", "get", child.id.removeprefix(f"{run.id}.")[1:])["id"] == child.id
    assert read("lens", "get", run.id[8:])["id"] == run.id


def test_the_final_output_and_nothing_else(flujo, failed):
    """As `flujo run` prints it; a run without one says so, with exit code 1 (§2.8)."""
    run = json.loads(flujo("run", "cli_pipelines:typed", "-i", "x", "-d", '{"topic": "bees"}', "--json").stdout)["id"]
    assert flujo("lens", "get", run[10:], "--final-output").stdout == "X\n"
    assert flujo("lens", "show", run, "--final-output", "--json").stdout == '"X"\n'
    assert flujo("lens", "show", failed, "--final-output", code=1).stderr.startswith("NO_OUTPUT")


def test_lens_spans(flujo, read, failed):
    """The trace as a list, filtered by status and by a part of the name (§2.8)."""
    assert [(each["path"], each["status"]) for each in read("lens", "spans", failed, "--status", "failed")] == [
        ("check", "failed"), ("check:1", "failed"), ("check:2", "failed"),
    ]  # fmt: skip
    assert [each["path"] for each in read("lens", "spans", failed, "--name", "upp")] == ["upper"]
    assert flujo("lens", "spans", failed, "--name", "nothing").stderr == "no matching places\n"


def test_lens_stats(flujo, read, failed):
    """Of one pipeline: how many, how they ended, and where they fail (§2.8)."""
    stats, listed = read("lens", "stats", "--pipeline", "broken"), read("lens", "list", "--pipeline", "broken")
    assert (stats["runs"], stats["by_status"]) == (len(listed), {"failed": len(listed)})
    assert (stats["success_rate"], stats["duration_p95_s"] >= stats["duration_p50_s"] > 0) == (0.0, True)
    [step] = stats["failing_steps"]
    assert (step["step"], step["failed"], step["attempts"], step["runs"]) == (
        "check",
        *2 * (2 * len(listed),),
        len(listed),
    )
    assert "check         broken" in flujo("lens", "stats").stdout


def test_lens_evals(flujo, read, failed):
    """Of a run with its child runs, or of the newest runs, newest first (§2.8)."""
    runs = [read("run", "cli_pipelines:judged", "-i", text)["id"] for text in ("one", "three")]
    first, second = (read("lens", "evals", "--run-id", run) for run in runs)
    assert [
        (each["run"], each["step"], each["judge"], each["score"], each["passed"]) for each in (*first, *second)
    ] == [
        (runs[0], "say", "is_short", 1.0, True),
        (runs[1], "say", "is_short", 0.0, False),
    ]
    assert second[0]["feedback"] == "5 letters"
    assert read("lens", "evals", "--limit", "2") == [*second, *first]
    assert "is_short" in flujo("lens", "evals").stdout
    assert flujo("lens", "evals", "--run-id", failed).stderr == "no judgements\n"


def test_lens_gives_up_on_a_statement_that_does_not_end(site, flujo, failed):
    """U-22: someone holds a lock; `show` tells it after `--timeout` seconds instead of hanging."""
    with site.connection() as connection:
        connection.execute("LOCK TABLE flujo_attempts IN ACCESS EXCLUSIVE MODE")
        told = flujo("lens", "show", failed, "--timeout", "0.5", code=69)
    assert told.stderr.startswith("SERVICE_UNREACHABLE Postgres gave no answer within 0.5 s")


def test_lens_answers_without_redis(site, failed):
    """Postgres alone is asked: a run explains itself when Redis is gone (expectation of SYS-20)."""
    environment = {**site.settings.as_environment(), "FLUJO_BROKER_URL": "redis://127.0.0.1:1/0", "FLUJO_INPUT": None}
    for command in (
        "list",
        f"show {failed}",
        f"get {failed[9:]}",
        f"trace {failed}",
        f"spans {failed}",
        "stats",
        f"watch {failed}",
    ):
        told = CliRunner().invoke(cli, ["lens", *command.split()], env=environment)
        assert (told.exit_code, bool(told.stdout)) == (0, True), told.output


def test_lens_watch_tells_the_story(site, flujo, failed):
    """Each event in a line, as JSON too; from a cursor on only what came after it (SYS-20)."""
    story = site.client.get_run(failed).events()
    told = [json.loads(line) for line in flujo("lens", "watch", failed, "--json").stdout.splitlines()]
    assert [(each["id"], each["name"], each["cursor"]) for each in told] == [(e.id, e.name, e.cursor) for e in story]
    rest = flujo("lens", "watch", failed, "--json", "--after", story[1].cursor).stdout.splitlines()
    assert [json.loads(line)["id"] for line in rest] == [each.id for each in story[2:]]
    watched = flujo("lens", "watch", failed)
    assert "flujo.retry" in watched.stdout
    assert len(watched.stdout.splitlines()) == len(story)  # in a pipe, long values do not wrap
    assert watched.stderr.startswith(f"{failed}  broken  failed  ")


def test_lens_watch_shows_a_question_of_a_child_run_and_continues(site, code):
    """M-449: whoever watches a paused run sees what is asked, wherever in it, and how to answer; then the rest of the events."""
    run = site.client.enqueue("cli_pipelines:outer", "x")
    with watching(site, code, run.id) as process:
        talk = [process.stderr.readline() for _ in range(4)]
        assert "inside asks: really?" in "".join(talk)
        run.resume("yes", actor="ana")
        out, rest = process.communicate(timeout=60)
    assert (process.returncode, "run.succeeded" in out, "succeeded" in rest.splitlines()[-1]) == (0, True, True)
    assert any("flujo approvals approve" in line for line in talk)


def test_a_watch_shows_why_a_run_waits_and_ctrl_c_ends_it_quietly(site, flujo, code):
    """Exit code 130, nothing said, and the run continues (§2.8)."""
    run = flujo("enqueue", "cli_pipelines:hang", "-i", "x", "--delay", "3600").stdout.strip()
    with watching(site, code, run) as process:
        assert "run.enqueued" in process.stdout.readline()
        talk = [process.stderr.readline() for _ in range(2)]
        assert "Not begun: it waits for its time, " in talk[1]
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in talk) == (130, False)
    assert site.client.get_run(run).status() in ("queued", "running")
    flujo("runs", "cancel", run)


def watching(site, code, run):
    """A `flujo lens watch` in a separate process."""
    return subprocess.Popen(
        [sys.executable, "-m", "flujo_client.cli.main", "lens", "watch", run],
        cwd=code, env={**os.environ, **site.settings.as_environment()}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_beginning_that_several_runs_share_is_refused(flujo, failed):
    """The candidates are listed (§2.8)."""
    flujo("enqueue", "cli_pipelines:shout", "-i", "x")
    told = flujo("lens", "show", "run_", code=1)
    assert told.stderr.startswith("AMBIGUOUS_RUN 'run_' matches several runs:\n  run_")
    assert told.stderr.endswith("→ give more of the id, or its last characters\n")


@pytest.mark.parametrize("command", ["lens show", "lens trace", "lens spans", "lens watch", "runs cancel"])
def test_a_run_that_is_not_there(flujo, command):
    """A wrong id is a runtime error (§2.8)."""
    assert flujo(*command.split(), "run_none", code=1).stderr.startswith(
        "RUN_NOT_FOUND no run id begins or ends with 'run_none'"
    )


def test_cancel(flujo, read):
    """A running run ends as cancelled, with the reason that was given (U-38)."""
    run = flujo("enqueue", "cli_pipelines:hang", "-i", "x").stdout.strip()
    wait_until(lambda: read("lens", "show", run)["steps"][-1]["status"] == "running", what="the run hangs")
    cancelled = read("runs", "cancel", run, "--reason", "not needed", "--actor", "ana")
    assert cancelled == {"id": run, "cancelled": True, "status": "cancelled"}
    assert read("lens", "show", run)["reason"] == "not needed"


def test_a_run_that_has_ended_is_not_cancelled(flujo, failed):
    """It is left as it is, and that is said (U-38)."""
    assert flujo("runs", "cancel", failed, code=1).stderr == f"{failed} had already failed\n"


def test_retry(read, flujo, failed):
    """A new run that names the old one, in every view of it."""
    told = read("runs", "retry", failed)
    run = told["id"]
    assert told == {"id": run, "is_new": True, "forked_from": failed, "from_step": "check"}
    wait_until(lambda: read("lens", "show", run)["status"] == "failed")
    shown = read("lens", "show", run)
    assert (shown["forked_from"], shown["from_step"]) == (failed, "check")
    assert [step["status"] for step in shown["steps"]] == ["succeeded", "failed"]
    [listed] = [each for each in read("runs", "list") if each["id"] == run]
    assert (listed["forked_from"], listed["from_step"]) == (failed, "check")
    assert f"forked from {failed} at 'check'" in flujo("lens", "trace", run).stdout
    assert "fork at" in flujo("runs", "list").stdout  # what is left of it at 80 columns, beside an age in minutes


def test_what_cannot_be_retried_is_refused(flujo, failed):
    done = flujo("runs", "retry", failed, "--from-step", "chekc", code=1)
    assert "retry from one of these: 'upper', 'check'" in done.stderr


def test_fork(read, flujo, failed):
    """A new run of the code that is here, which names the old one; of a step that no one knows the choices are told."""
    told = read("runs", "fork", failed, "--from", "check", "--idempotency-key", "once")
    run = told["id"]
    assert told == {"id": run, "is_new": True, "forked_from": failed, "from_step": "check"}
    wait_until(lambda: read("lens", "show", run)["status"] == "failed")
    assert [step["status"] for step in read("lens", "show", run)["steps"]] == ["succeeded", "failed"]
    again = flujo("runs", "fork", failed, "--from", "check", "--idempotency-key", "once")
    assert (again.stdout.strip(), "already forked with this key" in again.stderr) == (run, True)
    refused = flujo("runs", "fork", failed, "--from", "chekc", code=1)
    assert "one of these: 'upper', 'check'" in refused.stderr


def test_a_run_that_no_worker_can_load_is_seen_as_parked(site, flujo, read, tmp_path, monkeypatch):
    """Why a run does not move is told while waiting and in the list (SYS-29)."""
    (tmp_path / "cli_elsewhere.py").write_text(PIPELINES)
    monkeypatch.syspath_prepend(tmp_path)
    told = flujo("run", "cli_elsewhere:shout", "-i", "x", "--timeout", "5.5", code=1)
    assert "parked: this worker cannot load its pipeline" in told.stderr
    assert f"this worker was started in {Path.cwd()}: start it in the folder that holds 'cli_elsewhere'" in told.stderr
    assert "the run makes no progress: parked: " in told.stderr
    assert "goes on" in told.stderr
    [parked] = read("lens", "list", "--status", "parked")
    assert parked["pipeline"] == "shout"
    flujo("runs", "cancel", parked["id"])


def test_ctrl_c_is_quiet_and_leaves_the_run(site, flujo, read, code):
    """An interrupted `flujo run` ends with 130, and the run continues, as it says (§2.8)."""
    environment = {**os.environ, **site.settings.as_environment()}
    process = subprocess.Popen(
        [sys.executable, "-m", "flujo_client.cli.main", "run", "cli_pipelines:hang", "-i", "x"],
        cwd=code, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    run = process.stderr.readline().split()[0]
    process.stderr.readline()  # it waits
    process.send_signal(signal.SIGINT)
    out, talk = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, "Traceback" in talk) == ("", False)
    assert f"{run} is not stopped: `flujo runs cancel {run}`" in talk
    assert read("lens", "show", run)["status"] in ("queued", "running")
    flujo("runs", "cancel", run)


@pytest.fixture
def paused(site, flujo):
    """A run that waits for an answer from a person."""
    run = flujo("enqueue", "cli_pipelines:asking").stdout.strip()
    wait_until(lambda: site.client.get_run(run).status() == "paused", what=site.log)
    return run


def test_a_run_on_services_becomes_a_test_without_them(site, paused, flujo_engine, tmp_path):
    """Its input and a person's answer are read from Postgres, and from then on from a file."""
    run = site.client.get_run(paused)
    run.resume(True)
    before = run.result(timeout=60)
    RecordedRun.read(paused, client=site.client).save(tmp_path / "run.json")
    again = RecordedRun.load(tmp_path / "run.json").rerun(flujo_engine)
    assert (again.run_status, again.output) == (before.run_status, before.output) == ("succeeded", {"said": True})
    with LocalEngine() as engine:
        assert engine.from_run(paused, client=site.client).output == {"said": True}


def test_open_questions_are_listed(flujo, paused):
    """SYS-17: what a question says cannot move a terminal."""
    table = flujo("approvals", "list", "--run", paused).stdout
    assert "go\\x1b[2J?" in table
    [asked] = json.loads(flujo("approvals", "list", "--run", paused, "--json").stdout)
    assert (asked["run"], asked["step"], asked["state"]) == (paused, "ask", "open")
    assert paused in flujo("lens", "list", "--status", "paused").stdout


@pytest.mark.parametrize(("verb", "said"), [("approve", True), ("reject", False)])
def test_a_question_is_approved_or_rejected(site, flujo, paused, verb, said):
    """M-452: a second answer exits with 1 and says who was first."""
    done = json.loads(flujo("approvals", verb, paused, "--actor", "ana", "--note", "so", "--json").stdout)
    assert done["step"] == "ask"
    assert site.client.get_run(paused).result(timeout=60).output == {"said": said}
    refused = flujo("approvals", verb, paused, code=1)
    assert "ALREADY_ANSWERED" in refused.stderr
    assert "by ana" in refused.stderr


def test_an_answer_is_text_unless_it_is_said_to_be_json(site, flujo, paused):
    assert "ANSWER_REFUSED" in flujo("approvals", "answer", paused, "true", code=1).stderr
    assert flujo("approvals", "answer", paused, "--input-json", "true").stdout.strip() == paused
    assert site.client.get_run(paused).result(timeout=60).output == {"said": True}


@pytest.mark.parametrize("given", [[], ["true", "--input-json", "true"]])
def test_an_answer_is_one_value(flujo, given):
    assert (
        "give the answer as VALUE, or with --input-json" in flujo("approvals", "answer", "run_1", *given, code=2).stderr
    )


def test_run_says_that_it_waits_for_a_person(flujo):
    told = flujo("run", "cli_pipelines:asking", "--timeout", "3", code=1).stderr
    assert "waits for an answer from a person at ask\n" in told
    assert told.count("ask asks: go\\x1b[2J?\n  flujo approvals approve run_") == 1
    assert "still paused after 3 s" in told
