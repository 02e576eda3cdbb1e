"""What every supported Celery carries: chains, fan-outs, killed and stopping workers, in each pool. It runs in the environment of a row."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from celery import Celery
from packaging.requirements import Requirement

from flujo_client.embedded.postgres import find_binaries
from flujo_worker.celery_app.consumer.pool import POOL
from tests.compat import POSTGRES, SENT_AGAIN
from tests.compat.environments import major_of
from tests.support.fleet import BRISK, FOLDER, STEPS, assert_merged_once, wait_until

pytestmark = [pytest.mark.compat, pytest.mark.site(worker=BRISK | {"shutdown_grace_s": 60.0})]

OWN = "own"
POOLS = {OWN: "attempts", "attached own": "custom", "attached threads": "threads", "attached prefork": "prefork"}
"""Pools by what the page calls them: that of `flujo worker`, and those of an application's `celery worker`."""

SLOTS = 4
AT_ONCE = 8
BIN = Path(sys.executable).parent


class Worker:
    """The worker process of a pool, and its children."""

    def __init__(self, site, pool):
        self.site, self.is_attached = site, pool != OWN
        slots = ["-c", str(SLOTS), "-P", POOLS[pool]]
        attached = [BIN / "celery", "-A", "shop_app", "worker", "-l", "INFO", *slots]
        self._command = attached if self.is_attached else [BIN / "flujo", "worker", *slots]
        self._process = None

    def start(self):
        """Start the process if none runs, and wait until it takes work."""
        if self._process is None:
            self._process = self._spawn()
            wait_until(self.live, what=self.site.log)

    def _spawn(self):
        code = os.pathsep.join(map(str, (STEPS, Path(__file__).parent)))
        own = {"PYTHONPATH": code, FOLDER: str(self.site.folder), "CELERY_CUSTOM_WORKER_POOL": POOL}
        environment = os.environ | self.site.settings.as_environment() | own
        with (self.site.folder / "workers.log").open("ab") as log:
            return subprocess.Popen(self._command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def live(self):
        """The processes of this worker whose lease is alive."""
        return {pid for pid in self.site.live_pids() if group_of(pid) == self._process.pid}

    def stop(self):
        """Ask the process to stop, as a supervisor does."""
        self._process.terminate()

    def ended(self):
        """Wait for the end of the process, and return its exit code."""
        code, self._process = self._process.wait(timeout=60), None
        return code

    def kill(self):
        """End all processes as a power cut would."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self.ended()


def group_of(pid):
    with suppress(ProcessLookupError):
        return os.getpgid(pid)


@pytest.fixture(scope="module", params=POOLS)
def pool(site, request):
    """The worker of a pool, started anew by each test that needs it after its end."""
    worker = Worker(site, request.param)
    yield worker
    worker.kill()


@pytest.fixture
def worker(pool):
    pool.start()
    return pool


def test_the_versions_are_allowed():
    """Each requirement of the distribution holds in this environment."""
    needs = [need for need in map(Requirement, requires("flujo-worker")) if is_for_workers(need)]
    broken = {str(need): version(need.name) for need in needs if version(need.name) not in need.specifier}
    assert not broken


def test_the_chosen_postgres_runs(site):
    """The one that the environment names, or that of the wheel."""
    folder = Path(os.environ.get(POSTGRES, find_binaries()))
    [row] = site.rows("SHOW server_version")
    assert int(row["server_version"].partition(".")[0]) == major_of(folder)


def is_for_workers(need):
    return need.marker is None or need.marker.evaluate({"extra": "worker"})


def test_chain(site, worker):
    """A chain of steps runs, one of tasks, which are retried as they say, and beside them the tasks of the application."""
    run, tasks = site.enqueue("three"), site.client.enqueue("compat_pipelines:tasks", 0)
    if worker.is_attached:
        theirs = Celery("somebody", broker=site.settings.broker(), backend=site.settings.broker())
        task = theirs.send_task("shop.add", (1, 2)).id
        wait_until(lambda: theirs.backend.get_state(task) == "SUCCESS", what=site.log)
        assert theirs.backend.get_result(task) == 3
        theirs.close()
    assert_merged_once(site, run, ["first", "second", "third"])
    result = tasks.result(timeout=60)
    assert (result.output, [step.attempts for step in result.step_history]) == (3, [2, 2])


def test_fan_out(site, worker):
    assert outputs(site, "flat", 1) == [6]
    assert site.rows(SENT_AGAIN) == []


def test_nested(site, worker, record_property):
    """Fan-outs inside fan-outs, many at once: each join is rung by its chord, and no message is sent again."""
    assert outputs(site, "nested", AT_ONCE) == [9] * AT_ONCE
    again = site.rows(SENT_AGAIN)
    record_property("sent_again", len(again))
    assert again == []


def outputs(site, name, runs):
    handles = [site.client.enqueue(f"compat_pipelines:{name}", 1) for _ in range(runs)]
    return [handle.result(timeout=60).output for handle in handles]


def test_kill(site, worker):
    """kill -9 while a step runs: the next worker runs it again, and its result is merged once."""
    run = site.enqueue("gated")
    first = site.wait_for_execution(run.id, "gate")
    worker.kill()
    worker.start()
    again = site.wait_for_execution(run.id, "gate", times=2)
    site.open_gate(run.id)
    assert_merged_once(site, run, ["before", "gate", "after"])
    assert again.pid != first.pid


def test_stop(site, worker):
    """A worker that is told to stop ends its step, gives back its lease, and ends with 0."""
    run = site.client.enqueue("compat_pipelines:gate", [])
    begun = site.wait_for_execution(run.id, "gate")
    worker.stop()
    wait_until(lambda: stops(site, begun.pid), what=site.log)
    site.open_gate(run.id)
    assert worker.ended() == 0, site.log()
    assert run.result(timeout=60).run_status == "succeeded"
    assert site.executions(run.id, "gate") == [begun]
    assert begun.pid not in site.live_pids()


def stops(site, pid):
    return site.rows("SELECT 1 FROM flujo_workers WHERE pid = %(pid)s AND stop_requested_at IS NOT NULL", pid=pid)
