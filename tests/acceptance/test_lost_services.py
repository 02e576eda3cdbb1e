"""Redis wiped, Postgres crashed, messages doubled: the rows know what is to be done, and the claims refuse what was (M-403)."""

import signal

import pytest

from tests.support.fleet import BRISK, Site, assert_merged_once, wait_until
from tests.support.services import read_only

pytestmark = [pytest.mark.acceptance, pytest.mark.usefixtures("own_workers")]

THREE, GATED = ["first", "second", "third"], ["before", "gate", "after"]


@pytest.fixture(scope="module")
def services(services_to_break):
    """Return services that no other test process uses: tests here wipe and restart them."""
    return services_to_break


def test_runs_outlive_a_wiped_redis(site):
    """Law of design §5: FLUSHALL with one step running and others queued; all finish, and the running one is not repeated."""
    site.workers(arguments=("--concurrency", "1"))
    running = site.enqueue("gated")
    site.wait_for_execution(running.id, "gate")
    wait_until(lambda: site.redis.exists("flujo:epoch"), what="a sweep before the wipe")
    queued = [site.enqueue("three") for _ in range(5)]
    assert site.redis.llen("flujo.attempts") >= 5
    site.redis.flushall()
    site.open_gate(running.id)
    assert_merged_once(site, running, GATED)
    for run in queued:
        assert_merged_once(site, run, THREE)
    assert [len(site.executions(run.id)) for run in (running, *queued)] == [3] * 6


def test_runs_outlive_a_restart_of_redis(site, services):
    """Law of design §5: Redis goes away and comes back empty under a running step, with others queued."""
    site.workers(arguments=("--concurrency", "1"))
    running = site.enqueue("gated")
    site.wait_for_execution(running.id, "gate")
    queued = [site.enqueue("three") for _ in range(5)]
    services.restart_redis()
    site.open_gate(running.id)
    assert_merged_once(site, running, GATED)
    for run in queued:
        assert_merged_once(site, run, THREE)
    assert len(site.executions(running.id)) == 3


def test_a_message_lost_from_a_queue_of_your_own_is_sent_again(site):
    """Law of design §5: everything runnable finishes; popped by a worker that died, say, before it could claim."""
    run = site.enqueue("three", queue="heavy")
    assert site.redis.delete("heavy")
    with site.connection() as connection:  # long enough ago that a message which is not claimed counts as lost
        connection.execute(
            "UPDATE flujo_attempts SET sent_at = sent_at - interval '1 minute' WHERE run_id = %s", [run.id]
        )
    site.workers(arguments=("--queues", "heavy"))
    assert_merged_once(site, run, THREE)


def test_a_backlog_that_waited_for_the_first_worker_is_not_doubled(services, tmp_path):
    """Law of design §5: a long backlog is not republished, not even by the first sweep there ever was."""
    with Site(services, tmp_path, worker=BRISK) as site:
        runs = [site.enqueue("three") for _ in range(20)]
        site.workers()
        for run in runs:
            assert_merged_once(site, run, THREE)
        assert {each["sends"] for run in runs for each in site.attempts(run.id)[:1]} == {1}


@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_a_step_outlives_a_restart_of_postgres(site, services, mode):
    """Law of design §5: Postgres is killed, or stopped, and comes back under a running step; its outcome is kept and merged, no step repeated."""
    site.workers(2)
    runs = [site.enqueue("gated") for _ in range(3)]
    for run in runs:
        site.wait_for_execution(run.id, "gate")
    site.rows("SELECT pg_logical_emit_message(true, 'test', 'writes the log up to here: claims do not wait for that')")
    services.restart_postgres(mode)
    for run in runs:
        site.open_gate(run.id)
    for run in runs:
        assert_merged_once(site, run, GATED)
        assert len(site.executions(run.id)) == 3


def test_a_step_outlives_a_failover(services, tmp_path):
    """Law of design §5: Postgres is read-only for longer than a lease while steps run, end and wait; none is repeated, all are merged once."""
    with Site(services, tmp_path, worker=BRISK | {"lease_s": 4.0}) as site:  # longer than the pause between two tries
        site.workers(2)
        runs = [site.enqueue("gated") for _ in range(3)]
        for run in runs:
            site.wait_for_execution(run.id, "gate")
        waiting = site.enqueue("three")
        with read_only(services):
            for run in runs[1:]:
                site.open_gate(run.id)
            wait_until(lambda: not site.live_pids(), what=site.log)
            assert {run.status() for run in runs} == {"running"}
        site.open_gate(runs[0].id)
        for run in runs:
            assert_merged_once(site, run, GATED)
            assert len(site.executions(run.id)) == 3
            assert [each["losses"] for each in site.attempts(run.id)] == [0, 0, 0]
        assert_merged_once(site, waiting, THREE)


def test_a_worker_stops_although_its_outcomes_cannot_be_recorded(services, tmp_path):
    """A supervisor's SIGKILL must not be what ends it."""
    worker, agents = BRISK | {"shutdown_grace_s": 0.2}, {"cancel_grace_s": 0.2}
    with Site(services, tmp_path, worker=worker, agents=agents) as site:
        stopping = site.workers()
        run = site.enqueue("gated")
        site.wait_for_execution(run.id, "gate")
        with read_only(services):
            site.open_gate(run.id)
            stopping.signal(signal.SIGTERM)
            wait_until(lambda: not stopping.pids, what=site.log)
        site.workers()
        assert_merged_once(site, run, GATED)


def test_an_outcome_that_meets_a_crash_is_merged_once(site, services):
    """M-013: Postgres crashes again and again while steps begin and end."""
    site.workers(2)
    runs = [site.enqueue("lingering") for _ in range(60)]
    for _ in range(2):
        wait_until(lambda: site.rows("SELECT 1 FROM flujo_runs WHERE status = 'running'"))
        services.restart_postgres()
    for run in runs:
        assert_merged_once(site, run, THREE)


def test_a_doubled_message_is_performed_once(site):
    """M-013: two more copies of a message while it is being performed, and two after the run's end."""
    run = site.enqueue("waiting")
    message = site.redis.lindex("flujo.attempts", 0)
    assert run.id.encode() in message
    site.workers(2)
    site.wait_for_execution(run.id, "gate")
    site.redis.lpush("flujo.attempts", message, message)
    wait_until(lambda: site.redis.llen("flujo.attempts") == 0)
    site.open_gate(run.id)
    assert_merged_once(site, run, ["gate", "after"])
    site.redis.lpush("flujo.attempts", message, message)
    wait_until(lambda: site.redis.llen("flujo.attempts") == 0)
    assert_merged_once(site, site.enqueue("three"), THREE)
    assert [each.step for each in site.executions(run.id)] == ["gate", "after"]
