"""Workers whose code does not end when it should: slots come back, a worker that has too much of it is replaced."""

import os
import signal
import subprocess
import sys

import pytest

from flujo_worker.errors import RETIRED
from tests.support.fleet import BRISK, STEPS, Site, one_process, wait_until

pytestmark = [pytest.mark.acceptance, one_process]


@pytest.fixture
def site(request, services, tmp_path):
    """Yield a site whose workers wait 0.3 s, or the test's parameter, for their loop and for code that they cancel."""
    patience_s = getattr(request, "param", 0.3)
    worker = {**BRISK, "loop_blocked_s": patience_s, "max_left_behind": 2}
    with Site(services, tmp_path, worker=worker, agents={"cancel_grace_s": patience_s}) as site:
        yield site


def enqueue(site, name):
    return site.client.enqueue(f"stuck_pipelines:{name}", [])


def test_a_worker_with_code_left_behind_takes_the_next_step_and_stops_in_time(site):
    """SIGTERM does not wait for code that ignores its cancellation; its slot is free already."""
    fleet, stuck = site.workers(arguments=("--concurrency", "1")), enqueue(site, "deaf")
    assert stuck.result(timeout=120).run_status == "failed"
    assert enqueue(site, "plain").result(timeout=120).output == ["plain"]
    [process] = fleet.processes
    process.terminate()
    assert process.wait(timeout=20) == 0


def test_sigterm_does_not_outlast_a_steps_timeout_and_grace(site):
    """The step is under way when the worker is told to stop."""
    fleet, stuck = site.workers(), enqueue(site, "deaf_for_long")
    site.wait_for_execution(stuck.id, "deaf")
    [process] = fleet.processes
    process.terminate()
    assert process.wait(timeout=20) == 0
    assert stuck.result(timeout=120).run_status == "failed"


def test_a_worker_with_too_much_left_behind_retires(site):
    fleet = site.workers()
    [process] = fleet.processes
    runs = [enqueue(site, "deaf") for _ in range(2)]
    for run in runs:
        assert run.result(timeout=120).run_status == "failed"
    assert process.wait(timeout=60) == RETIRED, site.log()
    assert fleet.replace_dead() == 1
    assert enqueue(site, "plain").result(timeout=120).output == ["plain"]


@pytest.mark.parametrize("site", [1.0], indirect=True)  # a loop that waits for the processor is not blamed
def test_a_worker_whose_loop_is_blocked_takes_no_messages(site):
    """Others take what is enqueued meanwhile, the blocked step is named, and the worker continues when it has ended."""
    site.workers(arguments=("--concurrency", "8"))
    blocking = enqueue(site, "blocking")
    blocked = site.wait_for_execution(blocking.id, "block")
    wait_until(lambda: "blocks the event loop" in site.log(), what=site.log)
    wait_until(lambda: "Canceling queue flujo.attempts" in (site.folder / "workers.log").read_text(), what=site.log)
    site.workers()
    plain = [enqueue(site, "plain") for _ in range(12)]
    for run in plain:
        assert run.result(timeout=60).output == ["plain"]
        assert site.executions(run.id)[0].pid != blocked.pid
    site.open_gate(blocking.id)
    assert blocking.result(timeout=120).run_status == "succeeded"
    wait_until(lambda: any(site.executions(again.id)[0].pid == blocked.pid for again in ran(site, 8)), what=site.log)


def ran(site, count):
    runs = [enqueue(site, "plain") for _ in range(count)]
    for run in runs:
        run.result(timeout=120)
    return runs


def test_a_worker_whose_loop_is_blocked_permanently_retires(site):
    """The step fails with its timeout, though no timer of its loop can fire."""
    fleet = site.workers()
    [process] = fleet.processes
    stuck = enqueue(site, "blocking_for_good")
    site.wait_for_execution(stuck.id, "block")
    result = stuck.result(timeout=120)
    assert "TimeoutError: no answer within 0.5 s" in result.step_history[0].feedback
    assert process.wait(timeout=60) == RETIRED, site.log()


def test_a_worker_that_retires_hands_back_what_ran_beside(site):
    """No loss is counted for the innocent, and their workers begin again with the same number, long before the grace time of a stop."""
    fleet = site.workers(arguments=("--concurrency", "20"))
    [process] = fleet.processes
    innocent = [enqueue(site, "lasting") for _ in range(12)]
    for run in innocent:
        site.wait_for_execution(run.id, "lasting")
    stuck = enqueue(site, "blocking_for_good")
    site.workers()
    for run in innocent:
        site.wait_for_execution(run.id, "lasting", times=2)
        site.open_gate(run.id)
    assert [run.result(timeout=60).run_status for run in innocent] == ["succeeded"] * 12
    assert "TimeoutError" in stuck.result(timeout=120).step_history[0].feedback
    assert process.wait(timeout=60) == RETIRED, site.log()
    assert site.rows("SELECT key FROM flujo_attempts WHERE losses > 0 OR number > 1") == []
    for run in innocent:
        assert site.events(run.id, "attempt.lost") == []
        assert len(site.events(run.id, "attempt.handed_back")) == 1


@pytest.mark.large
def test_a_step_that_blocks_the_loop_by_a_callback_is_found_out_apart(site):
    """No call is to blame for a callback, so at most two workers retire without a loss; in the processes apart, each time is one.

    Where the step's timeout is merged before its process retires, that is the end.
    """
    fleet, stuck = site.workers(), enqueue(site, "blocking_by_callback")
    wait_until(lambda: fleet.replace_dead() is None or stuck.status() == "failed", 150, what=site.log)
    error = stuck.result(timeout=5, check=False).error
    assert len(site.events(stuck.id, "attempt.handed_back")) <= 2, site.log()
    assert error.code in ("ATTEMPT_LOST", "STEP_TIMEOUT")


@pytest.mark.large
def test_a_prefork_pool_replaces_a_process_that_retires_and_no_other(site):
    """The worker stays, and so does what runs in its other process."""
    fleet = site.unready_workers(arguments=("--pool", "prefork", "--concurrency", "2"))
    wait_until(lambda: len(site.live_pids() - fleet.pids) == 2, what=site.log)
    innocent, stuck = enqueue(site, "lasting"), enqueue(site, "blocking_for_good")
    beside, retired = site.wait_for_execution(innocent.id, "lasting"), site.wait_for_execution(stuck.id, "block")
    assert "TimeoutError" in stuck.result(timeout=60).step_history[0].feedback
    wait_until(lambda: len(site.live_pids() - {retired.pid}) == 2, what=site.log)
    site.open_gate(innocent.id)
    assert innocent.result(timeout=60).success
    assert [each.pid for each in site.executions(innocent.id)] == [beside.pid]
    assert [process.poll() for process in fleet.processes] == [None]
    assert site.rows("SELECT key FROM flujo_attempts WHERE losses > 0") == []


@pytest.mark.installation
def test_flujo_up_replaces_a_worker_that_retired(site):
    own = {
        "FLUJO_DATABASE_URL": site.settings.database(),
        "FLUJO_BROKER_URL": site.settings.broker(),
        "FLUJO_WORKER_MAX_LEFT_BEHIND": "1",
        "FLUJO_AGENTS_CANCEL_GRACE_S": "0.3",
        "ACCEPTANCE_FOLDER": str(site.folder),
        "PYTHONPATH": str(STEPS),
    }
    command = [sys.executable, "-m", "flujo_worker", "up", "--workers", "1"]
    with subprocess.Popen(command, cwd=site.folder, env=os.environ | own, stderr=subprocess.PIPE, text=True) as up:
        try:
            stuck = enqueue(site, "deaf")
            stuck.result(timeout=60)
            assert enqueue(site, "plain").result(timeout=60).success
            wait_until(lambda: len(site.rows("SELECT DISTINCT pid FROM flujo_workers")) >= 2, what="a new worker")
        finally:
            up.send_signal(signal.SIGTERM)
            talk = up.communicate(timeout=60)[1]
    assert "1 worker process ended and was replaced" in talk


@pytest.mark.large
def test_flujo_worker_replaces_itself_when_it_retires(site):
    """The process that was started stays, and its new worker takes the next step; then SIGTERM stops both."""
    own = {
        "FLUJO_DATABASE_URL": site.settings.database(),
        "FLUJO_BROKER_URL": site.settings.broker(),
        "FLUJO_WORKER_MAX_LEFT_BEHIND": "1",
        "FLUJO_AGENTS_CANCEL_GRACE_S": "0.3",
        "ACCEPTANCE_FOLDER": str(site.folder),
        "PYTHONPATH": str(STEPS),
    }
    command = [sys.executable, "-m", "flujo_worker", "worker"]
    with subprocess.Popen(command, cwd=site.folder, env=os.environ | own) as worker:
        try:
            enqueue(site, "deaf").result(timeout=60)
            pids = "SELECT DISTINCT pid FROM flujo_workers"
            wait_until(lambda: len(site.rows(pids)) == 2, what="a new worker")
            assert enqueue(site, "plain").result(timeout=60).success
            assert worker.poll() is None
            assert worker.pid not in [row["pid"] for row in site.rows(pids)]
        finally:
            worker.terminate()
            assert worker.wait(timeout=60) == 0


@pytest.mark.parametrize("site", [1.0], indirect=True)  # the time in which it renews its lease counts
def test_a_process_that_stood_still_does_not_blame_its_code(site):
    """A freeze for longer than the step's timeout and grace: the step is late, and nothing of it is left behind."""
    fleet, run = site.workers(), enqueue(site, "patient")
    site.wait_for_execution(run.id, "patient")
    fleet.signal(signal.SIGSTOP)
    wait_until(lambda: not fleet.pids & site.live_pids(), what="its lease has not ended")
    fleet.signal(signal.SIGCONT)
    site.open_gate(run.id)
    run.result(timeout=120)
    assert enqueue(site, "plain").result(timeout=120).output == ["plain"]
    [process] = fleet.processes
    assert process.poll() is None
    assert site.events(run.id, "step.left_behind") == []
