"""Workers that stop before their steps have ended: others begin those at once, without waiting for a lease."""

import threading
from itertools import pairwise, product

import pytest

from flujo_worker.cli.drain import drain
from tests.support.breadth import large
from tests.support.fleet import STEADY, Site, assert_merged_once, wait_until

LEASE_S = STEADY["lease_s"]
GRACE = {"agents": {"cancel_grace_s": 0.5}}
# A lease so long that whatever waits for one to run out is not done within a test.
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.site(worker=STEADY | {"shutdown_grace_s": 0.3}, **GRACE),
    pytest.mark.usefixtures("own_workers"),
]


def enqueue(site, name):
    return site.client.enqueue(f"restart_pipelines:{name}", [])


def restart(site, leaving, arguments=()):
    """Start another worker, and stop this one once that is up, as a rolling deployment does; return the new fleet."""
    arriving = site.workers(arguments=arguments)
    [process] = leaving.processes
    process.terminate()
    assert process.wait(timeout=60) == 0, site.log()
    return arriving


def pool(name):
    return ("--pool", name, "--concurrency", "2")


@pytest.mark.parametrize(
    ("name", "pipeline"),
    [
        *product(["attempts"], ["patient", "in_thread", "deaf"]),
        *[large("threads", each) for each in ("patient", "in_thread", "deaf")],
        *[large("prefork", "patient"), large("prefork", "in_thread"), large("prefork", "deaf")],
    ],
)
def test_a_step_that_does_not_end_in_time_is_begun_by_another_worker(site, name, pipeline):
    """M-011: whether its code ends when it is cancelled, cannot be ended, or ignores it."""
    leaving = started(site, pool(name))
    run = enqueue(site, pipeline)
    first = site.wait_for_execution(run.id, "gate")
    restart(site, leaving)
    again = site.wait_for_execution(run.id, "gate", times=2)
    site.open_gate(run.id)
    assert_merged_once(site, run, ["gate", "after"])
    assert (again.attempt, again.pid == first.pid) == (1, False)
    [handed_back] = site.events(run.id, "attempt.handed_back")
    waited = (site.attempts(run.id)[0]["started_at"] - handed_back["at"]).total_seconds()
    print(f"handed back → begun again: {waited:.3f} s")
    assert waited < LEASE_S / 6
    assert not site.events(run.id, "attempt.lost")


def started(site, arguments):
    """A worker, whatever its pool, all of whose processes are up."""
    before, count = site.live_pids(), 2 if "prefork" in arguments else 1
    fleet = site.unready_workers(arguments=arguments)
    wait_until(lambda: len(site.live_pids() - before) >= count, what=site.log)
    return fleet


def test_no_number_of_restarts_makes_a_step_a_suspect(site):
    """It is neither lost nor quarantined, and keeps its number."""
    run, fleet = enqueue(site, "patient"), site.workers()
    for times in range(1, 6):
        site.wait_for_execution(run.id, "gate", times=times)
        fleet = restart(site, fleet)
    site.wait_for_execution(run.id, "gate", times=6)
    site.open_gate(run.id)
    assert_merged_once(site, run, ["gate", "after"])
    assert {(each["number"], each["losses"]) for each in site.attempts(run.id)} == {(1, 0)}
    assert not site.events(run.id, "attempt.isolated")


def test_what_code_makes_of_its_cancellation_counts_if_it_is_a_result(services, tmp_path):
    """An error it raises then is the deploy's fault: the step is begun again and does not fail."""
    patient = {"agents": {"cancel_grace_s": 5.0}}
    with Site(services, tmp_path, worker=STEADY | {"shutdown_grace_s": 0.3}, **patient) as site:
        fleet = site.workers()
        well, failing = enqueue(site, "ending_well"), enqueue(site, "failing")
        for run in (well, failing):
            site.wait_for_execution(run.id, "gate")
        restart(site, fleet)
        assert_merged_once(site, well, ["gate", "after"])
        site.wait_for_execution(failing.id, "gate", times=2)
        site.open_gate(failing.id)
        assert_merged_once(site, failing, ["gate", "after"])
        assert len(site.executions(well.id, "gate")) == 1


@pytest.mark.large
def test_three_workers_restarted_one_by_one_under_load(services, tmp_path):
    """M-011: no step is repeated that ends within the grace time, all runs end, and work continues all the time."""
    with Site(services, tmp_path, worker=STEADY | {"shutdown_grace_s": 2.0}, **GRACE) as site:
        fleets = [site.workers() for _ in range(3)]
        long = [enqueue(site, name) for name in ("patient", "in_thread") * 3]
        for run in long:
            site.wait_for_execution(run.id, "gate")
        with loaded(site) as runs:
            wait_until(lambda: len(runs) >= 20, what=site.log)
            since = site.rows("SELECT now() AS at")[0]["at"]
            for fleet in fleets:
                restart(site, fleet)
            until = site.rows("SELECT now() AS at")[0]["at"]
        for run in runs:
            assert_merged_once(site, run, [f"step{number}" for number in range(5)])
            assert len(site.executions(run.id)) == 5
        for run in long:
            site.open_gate(run.id)
        for run in long:
            assert_merged_once(site, run, ["gate", "after"])
            assert len(site.executions(run.id, "gate")) == 1 + len(site.events(run.id, "attempt.handed_back"))
        assert sum(len(site.events(run.id, "attempt.handed_back")) for run in long) >= len(long)
        assert site.stuck() == []
        pause = longest_pause(site, since, until)
    print(f"{len(runs)} runs; longest time without a merge while three workers were restarted: {pause:.2f} s")
    assert pause < LEASE_S / 6


@pytest.mark.parametrize("name", ["attempts", large("threads"), large("prefork")])
def test_a_worker_is_drained_from_anywhere(site, name, capsys):
    """By its host, or by its id; the command ends when the worker has, and what that ran continues elsewhere."""
    leaving = started(site, pool(name))
    run = enqueue(site, "patient")
    first = site.wait_for_execution(run.id, "gate")
    [row] = site.rows("SELECT id FROM flujo_workers WHERE pid = %(pid)s AND ended_at IS NULL", pid=first.pid)
    assert drain(site.settings, [row["id"]]) == 0
    assert "stopped" in capsys.readouterr().err
    assert leaving.processes[0].wait(timeout=60) == 0
    site.workers()
    assert site.wait_for_execution(run.id, "gate", times=2).pid != first.pid


def test_a_name_that_no_worker_has_is_told(site, capsys):
    assert drain(site.settings, ["nobody"]) == 1
    assert "no worker is alive on nobody" in capsys.readouterr().err


class loaded:  # noqa: N801 - used as a function
    """Enqueue runs of short steps all the time."""

    def __init__(self, site):
        self._site, self._runs, self._stopping = site, [], threading.Event()
        self._thread = threading.Thread(target=self._enqueue)

    def __enter__(self):
        self._thread.start()
        return self._runs

    def __exit__(self, *_):
        self._stopping.set()
        self._thread.join()

    def _enqueue(self):
        while not self._stopping.wait(0.1):
            self._runs.append(enqueue(self._site, "short"))


def longest_pause(site, since, until):
    """The longest time in which no attempt ended, in seconds."""
    ended = "SELECT ended_at AS at FROM flujo_attempts WHERE ended_at BETWEEN %(since)s AND %(until)s ORDER BY 1"
    times = [since, *(row["at"] for row in site.rows(ended, since=since, until=until)), until]
    return max((later - earlier).total_seconds() for earlier, later in pairwise(times))
