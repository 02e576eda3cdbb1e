"""The main job, as a user starts it."""

import json
import os
import pty
import re
import signal
import subprocess
import sys

import pytest
from flujo_demo.license_facts import installed_distributions

from flujo_client import FlujoClient, Settings
from flujo_client.embedded import running
from tests.support.fleet import wait_until

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.installation]

PROMPT = "yes or no, and a reason if you like:"
FLUJO = [sys.executable, "-m", "flujo_client.cli.main", "demo"]


def demo(folder, *arguments):
    environment = with_odd(folder)
    done = subprocess.run(
        [*FLUJO, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(server_folder):
    """Where every demo here is started, so that Postgres' data are made once."""
    return server_folder


def with_odd(folder):
    """The environment in which a distribution is installed that does not say what its licence is."""
    (there := folder / "odd-1.0.dist-info").mkdir(exist_ok=True)
    (there / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\nLicense: see the file")
    path = [str(folder), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def test_every_installed_distribution_is_audited_and_nothing_is_left_running(folder):
    """SYS-07 and the main job: one run that fans out over real workers, with evidence that stands."""
    report = json.loads(demo(folder, "--json"))
    assert sorted(line["distribution"] for line in report) == sorted([*installed_distributions(), "odd"])
    assert [(line["distribution"], line["approved"]) for line in report if line["approved"] is not None] == [
        ("odd", False)
    ]
    assert [line for line in report if line["verdict"] is None] == []
    told = {line["distribution"]: (line["category"], line["verdict"]["spdx"], line["note"][:4]) for line in report}
    assert told["celery"] == ("permissive", "BSD-3-Clause", "")
    assert told["psycopg"] == ("copyleft", "LGPL-3.0-only", "LGPL")
    left = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True, check=False).stdout
    assert left == ""


def at_terminal(folder, *arguments, typed):
    """Start the demo at a terminal; type each answer when it is asked for. What the terminal showed, without colours, and how it ended."""
    ours, its = pty.openpty()
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), its)
    shown, answers = "", list(typed)
    with subprocess.Popen([*FLUJO, *arguments], cwd=folder, env=with_odd(folder), **ends) as audit:
        os.close(its)
        while said := read(ours):
            shown += said
            if shown.count(PROMPT) > len(typed) - len(answers):
                os.write(ours, answers.pop(0).encode())
        os.close(ours)
        return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown).replace("\r\n", "\n"), audit.wait(timeout=60)


def read(terminal):
    """What was shown since; nothing, once no one can show anything any more."""
    try:
        return os.read(terminal, 65_536).decode(errors="replace")
    except OSError:
        return ""


def test_a_person_at_the_terminal_is_asked_and_sees_tables_and_a_trace(folder):
    """SYS-17: the question with what it is about, a reason for what is no answer, and the answer in the report.

    The report: categories with their counts, how the answers came, the run's trace, its fan-out folded, who took part. It is about
    some distributions by name; every installed one is audited above.
    """
    some = sorted({*installed_distributions()[:40], "psycopg", "odd"})
    typed = ["perhaps\n", "yes, we pay for it\n"]
    shown, code = at_terminal(folder, "--ask", "--full", "--workers", "1", *some, typed=typed)
    assert code == 0, shown
    told = [
        "odd 1.0: NOASSERTION, unknown",
        "May they be used?",
        "answer yes or no, got 'perhaps'",
        "permissive (",
        "What to do",
        "audit each#1  item  succeeded",
        f"\n{len(some)} distributions: ",
        "Approved: we pay for it.",
        "nothing is left running",
    ]
    assert sorted(told, key=shown.find) == told
    assert all(each in shown for each in told)
    for how in ("cut", "schema", "region", "reasoning", "str->float", "trailing-comma"):
        assert re.search(rf"(repaired|refused, asked again) +│ {how} ", shown), how
    assert re.search(r"… \d+ more items, all succeeded", shown)
    assert re.search(r"One run, (\d+) attempts: \1 in worker \d+\.", shown)
    assert re.search(r"Spent \$0 of \$2, and [1-9][\d,]+ of 1,000,000 tokens\.", " ".join(shown.split()))


def test_a_worker_is_killed_in_the_middle_and_the_run_continues(folder):
    """What matters on one screen: counts, what someone should see, where the run went, and that nothing was lost."""
    some = sorted({*installed_distributions()[:60], "psycopg", "odd"})
    shown = demo(folder, "--kill", *some)
    assert re.search(rf"^{len(some)} distributions: \d+ permissive, ", shown, re.MULTILINE)
    killed = re.search(
        r"^Worker (\d+) was killed in the middle: \d+ attempts? w(as|ere) done again", shown, re.MULTILINE
    )
    assert killed, shown
    assert re.search(r"^One run, [\d,]+ attempts: .+ in worker \d+, .+ in worker \d+", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 80
    assert "psycopg 3" in shown
    assert not re.search(r"celery \d", shown)
    assert shown.count("read metadata") == 1


def runs_of(settings):
    with FlujoClient(settings) as client:
        return client.list_runs()


def test_what_is_interrupted_is_not_carried_on_by_the_next_one(folder, tmp_path):
    """Ctrl-C: the run is cancelled, for it would take the next demo's workers; and nothing is left running."""
    settings = Settings(embedded_dir=folder / ".flujo")
    log = settings.embedded_dir / "demo-workers.log"
    log.unlink(missing_ok=True)

    def is_under_way():
        there = running(settings.embedded_dir)
        is_migrated = log.exists()  # workers start after that
        runs = there and is_migrated and runs_of(settings.with_services(there.database_url, there.broker_url))
        return runs and runs[0].status == "running"  # the newest first; those before it have ended

    talk = tmp_path / "talk.txt"
    with (
        talk.open("wb") as said,
        subprocess.Popen(
            [*FLUJO, "--workers", "1"],
            cwd=folder,
            start_new_session=True,
            stdout=said,
            stderr=said,
        ) as audit,
    ):
        wait_until(is_under_way, 60, what=lambda: f"the run is under way; {audit.poll()}: {talk.read_text()}")
        os.killpg(audit.pid, signal.SIGINT)
        assert audit.wait(timeout=60) == 130
    assert subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, check=False).stdout == b""
    run = runs_of(settings)[0]
    assert run.cancel_requested_at is not None
