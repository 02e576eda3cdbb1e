"""What supervisors rely on: the Procfile under a Procfile runner, heartbeat files, signals and exit codes (M-003, issue 8)."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from flujo_client.config.manager import ConfigManager
from tests.support.fleet import FOLDER, STEPS, Site, assert_merged_once, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.installation]

ROOT = Path(__file__).parents[2]
# A lease that no load makes lapse; renewed often, so that no one waits for the next beat.
LONG = {"lease_s": 30, "renew_s": 0.5, "sweep_s": 0.3}


@pytest.fixture(scope="module")
def site(services, tmp_path_factory):
    """One for all tests of the module."""
    with Site(services, tmp_path_factory.mktemp("site"), worker=LONG, health={"every_s": 0.5}) as site:
        yield site


def environment(site, **variables):
    given = ConfigManager().child_environment(site.settings)
    path = os.pathsep.join([str(Path(sys.executable).parent), given["PATH"]])
    search = os.pathsep.join([str(STEPS), str(ROOT)])
    return {**given, "PATH": path, "PYTHONPATH": search, FOLDER: str(site.folder), **variables}


@contextmanager
def started(site, *command, **variables):
    """A process and its log; killed with all that it started when the test is over."""
    log = site.folder / "deployed.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment(site, **variables), stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process, log.read_text
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_the_procfile_runs_a_run_and_ends_in_order(site, tmp_path):
    """M-003, SYS-30: `honcho start` starts every type, the one-shot first; each does its part, a blueprint goes through; SIGTERM ends them all."""
    (letter := tmp_path / "a.txt").write_text("It is broken.")
    honcho = ["honcho", "start", "-f", str(ROOT / "Procfile"), "-d", str(ROOT)]
    with started(site, *honcho, "migrate") as (once, log):
        assert once.wait(timeout=60) == 0, log()
    with started(site, *honcho, "worker", "coordinator", "beat") as (runner, log):
        try:
            letters = site.client.enqueue(str(ROOT / "examples/support_triage.yaml"), str(letter.parent))
            run = site.enqueue("three")
            assert_merged_once(site, run, ["first", "second", "third"])
            assert letters.result(timeout=60).output["desk"] == {"fault": ["a.txt: Ticket of urgency 2: It is broken."]}
            # Beat has asked for it, and only the coordinator listens where it asks.
            wait_until(lambda: site.rows("SELECT 1 FROM flujo_health_reports"), what=log)
            runner.terminate()
            assert runner.wait(timeout=60) == 128 + signal.SIGTERM, log()
            assert all(f"{name}.1 stopped" in log() for name in ("worker", "coordinator", "beat")), log()
            # The runner is patient for five seconds once the first has ended, however busy the machine is.
            assert "SIGKILL" in log() or site.live_pids() == set(), log()
        finally:
            for pid in site.live_pids():  # a lease outlasts its process if the runner killed it
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


WATCHED = """
import os, sys
def watch(event, what):
    if event == "open" and isinstance(what[0], str) and what[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        os.write(1, f"WRITES {what[0]}\\n".encode())
sys.addaudithook(watch)
from flujo_worker.cli import commands
commands(sys.argv[1:])
"""


def test_a_probe_tells_whether_this_worker_is_well(site, tmp_path):
    """Issue 8: not whether some worker is. A worker that hangs is told of, one that ended in order too; it writes nothing else."""
    file = tmp_path / "alive"
    with watched(site, "worker", file) as (worker, log):
        wait_until(file.exists, what=log)
        assert probe(file, "30") == 0
        os.killpg(worker.pid, signal.SIGSTOP)  # its parent, and the worker itself
        wait_until(lambda: time.time() - file.stat().st_mtime > 2, what="the file is still written")
        assert probe(file, "2") == 1
        before = file.stat().st_mtime
        os.killpg(worker.pid, signal.SIGCONT)
        wait_until(lambda: file.stat().st_mtime > before, what=log)
        assert probe(file, "30") == 0
        worker.terminate()
        assert (worker.wait(timeout=60), probe(file, "1000")) == (0, 1), log()
        assert writings(log()) == {str(file)}


def test_a_probe_tells_whether_beat_is_well(site, tmp_path):
    """Its root may be read-only: the schedule is kept in no file."""
    file = tmp_path / "alive"
    with watched(site, "beat", file) as (beat, log):
        wait_until(file.exists, what=log)
        assert probe(file, "30") == 0
        beat.terminate()
        assert (beat.wait(timeout=60), probe(file, "1000")) == (0, 1), log()
        assert writings(log()) == {str(file)}


SWALLOWED = """
import os, signal, sys
from flujo_worker.cli import beat
class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
def lose_the_signal(*_, **__):
    Finalized()
    print("swallowed", flush=True)
beat.ObservedScheduler.apply_async = lose_the_signal
beat.command([])
"""


def test_beat_stops_at_a_signal_whose_exception_is_lost(site):
    """An exception in a finalizer, and in much other code, goes no further."""
    with started(site, sys.executable, "-c", SWALLOWED) as (beat, log):
        assert beat.wait(timeout=60) == 0, log()
        assert "swallowed" in log()


def watched(site, command, file):
    """A process that tells of every file it opens to write."""
    variables = {"FLUJO_WORKER_HEARTBEAT_FILE": str(file), "PYTHONDONTWRITEBYTECODE": "1"}
    return started(site, sys.executable, "-c", WATCHED, command, **variables)


def writings(log):
    return {line.removeprefix("WRITES ") for line in log.splitlines() if line.startswith("WRITES ")} - {os.devnull}


def probe(file, seconds):
    command = [sys.executable, "-m", "flujo_client.cli.main", "dev", "alive", str(file), "--max-age", seconds]
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode


CRASH = """
from celery.worker.consumer import Consumer
def start(self):
    raise RuntimeError("out of the blue")
Consumer.start = start
from flujo_worker.cli import commands
commands(["worker"])
"""


def test_a_worker_that_crashed_does_not_end_with_0(site):
    """Issue 8: Celery ends in order then, and keeps the code to itself; supervisors would not start it again."""
    with started(site, sys.executable, "-c", CRASH) as (worker, log):
        assert worker.wait(timeout=60) == 1, log()
    assert "out of the blue" in log()


def test_a_heartbeat_file_that_cannot_be_made_ends_the_worker_at_the_start(site):
    with started(site, "flujo", "worker", FLUJO_WORKER_HEARTBEAT_FILE="/nowhere/alive") as (worker, log):
        assert worker.wait(timeout=60) == 2, log()
    assert "worker.heartbeat_file: /nowhere/alive cannot be written" in log()
