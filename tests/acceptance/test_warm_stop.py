"""A worker that is told to stop while it works."""

import signal
import time

import pytest

from flujo_client.gateway.requests import workers
from tests.support.fleet import BRISK, Site, assert_merged_once, own_pool, wait_until

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.site(worker=BRISK | {"shutdown_grace_s": 60.0}),
    pytest.mark.usefixtures("own_workers"),
]


@pytest.mark.parametrize("pool", ["attempts", pytest.param("threads", marks=pytest.mark.large), "prefork"])
def test_a_worker_told_to_stop_keeps_its_lease_until_its_step_is_done(site, pool):
    """M-011: the step continues for two leases after SIGTERM, with another worker ready to take over what is lost."""
    leaving = site.workers(arguments=("--pool", pool, "--concurrency", "2")) if pool != "prefork" else prefork(site)
    run = site.enqueue("gated")
    begun = site.wait_for_execution(run.id, "gate")
    site.workers()
    before = renewed(site, begun.pid)
    stopping = leaving.processes[0]
    stopping.terminate()
    wait_until(lambda: renewed(site, begun.pid) > before + 2 * site.settings.worker.lease_s, what=site.log)
    assert stopping.poll() is None
    assert [each.pid for each in site.client.ask(workers()) if each.is_live and each.is_stopping] == [begun.pid]
    site.open_gate(run.id)
    assert_merged_once(site, run, ["before", "gate", "after"])
    assert site.executions(run.id, "gate") == [begun]
    assert stopping.wait(timeout=60) == 0
    assert begun.pid not in site.live_pids()


def test_ctrl_c_stops_a_worker_in_order_too(site):
    """Not with the exit code of a crash, which Celery gives it (§2.8)."""
    leaving = site.workers()
    [process] = leaving.processes
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0


def prefork(site):
    fleet = site.unready_workers(arguments=("--pool", "prefork", "--concurrency", "2"))
    wait_until(lambda: len(site.live_pids() - fleet.pids) >= 2, what=site.log)
    return fleet


def renewed(site, pid):
    """When the process's lease will be over, in seconds of the database's clock."""
    [row] = site.rows(
        "SELECT extract(epoch FROM max(lease_until))::float8 AS until FROM flujo_workers WHERE pid = %(pid)s", pid=pid
    )
    return row["until"]


@pytest.mark.parametrize("is_busy", [False, pytest.param(True, marks=[pytest.mark.large, own_pool])])
def test_sigquit_hands_back_at_once_and_is_no_crash(site, is_busy):
    """Within far less than the grace time of a minute."""
    leaving = site.workers()
    run = site.enqueue("gated") if is_busy else None
    if run is not None:
        site.wait_for_execution(run.id, "gate")
    [process] = leaving.processes
    process.send_signal(signal.SIGQUIT)
    assert process.wait(timeout=40) == 0, site.log()
    if run is not None:
        [waiting] = [each for each in site.attempts(run.id) if each["ended_at"] is None]
        assert (waiting["losses"], waiting["worker"]) == (0, None)
        site.open_gate(run.id)


@pytest.mark.large
def test_an_exit_handler_that_sleeps_does_not_hold_a_stop_up(services, tmp_path, monkeypatch):
    """It has what is left of the grace time; the exit code stays that of a stop."""
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    monkeypatch.syspath_prepend(tmp_path)
    with Site(services, tmp_path, worker=BRISK | {"shutdown_grace_s": 4.0}) as site:
        leaving = site.workers(code=tmp_path)
        assert site.client.enqueue("sleepy:pipeline", 1).result(timeout=60).output == 1
        [process] = leaving.processes
        began = time.monotonic()
        process.terminate()
        assert process.wait(timeout=60) == 0, site.log()
        assert 3.0 < time.monotonic() - began < 15
        assert "did not end within" in site.log()


SLEEPY = """
import atexit
import os
import time

from flujo_client import Pipeline, Step

if "ACCEPTANCE_FOLDER" in os.environ:  # in the worker, not in the test
    atexit.register(time.sleep, 60)


async def same(value: int) -> int:
    return value


pipeline = Pipeline([Step("same", same)])
"""
