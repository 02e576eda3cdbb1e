"""Workers that die, freeze or wake too late: nothing is lost, and nothing is merged twice."""

import signal
import time

import pytest

from tests.support.fleet import BRISK, Site, assert_merged_once, one_process, wait_until

pytestmark = [pytest.mark.acceptance, one_process, pytest.mark.site(worker=BRISK)]

GATED = ["before", "gate", "after"]


def test_a_killed_workers_step_runs_again_within_fifteen_seconds(services, tmp_path):
    """M-001, M-013, law of design §5: kill -9 of the only worker at default settings; a new one carries on, one merge."""
    with Site(services, tmp_path) as site:
        fleet, run = site.workers(), site.enqueue("gated")
        first = site.wait_for_execution(run.id, "gate")
        fleet.kill()
        killed = time.monotonic()
        site.unready_workers()
        again = site.wait_for_execution(run.id, "gate", times=2)
        took = time.monotonic() - killed
        site.open_gate(run.id)
        assert_merged_once(site, run, GATED)
    print(f"kill -9 → running again: {took:.1f} s")
    assert took < 15
    assert (again.attempt, again.pid == first.pid) == (1, False)


def test_a_zombie_goes_no_further_and_merges_nothing(site):
    """M-013, protocol rule 5: of a worker that froze past its lease, and whose step another took over."""
    frozen, run = site.workers(), site.enqueue("gated")
    first = site.wait_for_execution(run.id, "gate")
    other = site.workers()
    frozen.signal(signal.SIGSTOP)
    again = site.wait_for_execution(run.id, "gate", times=2)
    site.open_gate(run.id)
    assert_merged_once(site, run, GATED)
    frozen.signal(signal.SIGCONT)
    attempt = f"{run.id}::gate:1"
    logged = f"{attempt} no longer belongs to this worker", f"outcome of {attempt} under fence 1 refused"
    wait_until(lambda: any(each in site.log() for each in logged), what=site.log)
    assert (first.pid, again.pid) == (*frozen.pids, *other.pids)
    assert_merged_once(site, run, GATED)
    assert len(site.executions(run.id)) == 4


def test_a_fleet_that_froze_as_a_whole_adopts_what_it_runs(site):
    """M-013, protocol rule 6: every lease is over at once, and still no step is repeated."""
    fleet = site.workers(2)
    runs = [site.enqueue("gated") for _ in range(4)]
    for run in runs:
        site.wait_for_execution(run.id, "gate")
    fleet.signal(signal.SIGSTOP)
    wait_until(lambda: not fleet.pids & site.live_pids(), what="their leases have not ended")
    fleet.signal(signal.SIGCONT)
    wait_until(lambda: fleet.pids <= site.live_pids(), what="new incarnations")
    for run in runs:
        site.open_gate(run.id)
    for run in runs:
        assert_merged_once(site, run, GATED)
        assert len(site.executions(run.id)) == 3


def test_a_step_that_kills_its_worker_every_time_fails_as_lost(services, tmp_path):
    """M-013, C-37: two workers die with it, then two processes that it has for itself; it fails under its one number."""
    worker = {"lease_s": 0.8, "renew_s": 0.3, "sweep_s": 0.2, "max_lost": 1}
    with Site(services, tmp_path, worker=worker) as site:
        fleet, run = site.workers(3), site.enqueue("deadly")
        wait_until(lambda: fleet.replace_dead() * 0 or run.status() not in ("queued", "running"), 60, what=site.log)
        result, attempts = run.result(), site.attempts(run.id)
        assert [(each["number"], each["status"], each["reason"]) for each in attempts] == [(1, "failed", "lost")]
        assert (result.run_status, result.error.type_name) == ("failed", "AttemptLost")
        assert len({each.pid for each in site.executions(run.id)}) == 4


@pytest.fixture(autouse=True)
def own_workers(request):
    """Each test has the workers it started, and no others."""
    yield
    if "site" in request.fixturenames:
        request.getfixturevalue("site").dismiss()


def test_a_neighbour_sees_that_a_worker_is_gone_long_before_its_lease_is_over(services, tmp_path):
    """Also a new one that may not judge leases yet, and with a lease that would last as long as this test."""
    with Site(services, tmp_path, worker={"lease_s": 600.0}) as site:
        fleet, run = site.workers(), site.enqueue("gated")
        site.wait_for_execution(run.id, "gate")
        fleet.kill()
        site.unready_workers()
        again = site.wait_for_execution(run.id, "gate", times=2)
        site.open_gate(run.id)
        assert_merged_once(site, run, GATED)
    assert again.attempt == 1


@pytest.mark.large
def test_celery_5970_a_chain_of_tasks_continues_after_its_worker_was_killed(site):
    gate, log = site.folder / "gate", site.folder / "shop"
    fleet = site.workers()
    run = site.client.enqueue("task_pipelines:chain", str(gate))
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"), what=site.log)
    fleet.kill()
    gate.touch()
    site.workers()
    assert run.result(timeout=60).output == f"{gate} at 100"
    assert log.read_text().count('"began"') == 2
