"""Steps that kill their process, beside steps that do nothing wrong: the killers fail as lost, and only they do."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from celery import Celery

from flujo_worker.attempts.isolation import DeliveryResult, NoFreeSlot, NoProcess
from flujo_worker.recovery.child_processes import ChildProcesses
from flujo_worker.recovery.quarantine import PLACES, Quarantine
from flujo_worker.store.postgres.stores import PostgresStores
from tests.support.breadth import large
from tests.support.fleet import BRISK, FOLDER, STEPS, Site, assert_merged_once, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]

WORKER = {**BRISK, "max_lost": 1}
LIVE = ("queued", "running")
GATED = ["before", "gate", "after"]
POISON = "the process died while this step ran alone, 2 times"


@pytest.mark.parametrize(("innocents", "killers"), [(2, 1), large(1, 2), large(4, 1), large(1, 3)])
def test_neighbours_of_steps_that_kill_their_process_succeed(services, tmp_path, innocents, killers):
    """M-013, C-37: an attempt fails as lost only for deaths of processes that it had for itself."""
    with Site(services, tmp_path, worker=WORKER) as site:
        fleet, calm = site.workers(), [site.enqueue("enduring") for _ in range(innocents)]
        for run in calm:
            site.wait_for_execution(run.id, "endure")
        deadly = [site.enqueue("aborting") for _ in range(killers)]
        ended = lambda: fleet.replace_dead() * 0 or all(run.status() not in LIVE for run in [*calm, *deadly])  # noqa: E731
        wait_until(ended, 120, what=site.log)
        for run in calm:
            assert_merged_once(site, run, ["endure", "after"])
        for run in deadly:
            error = run.result().error
            assert (error.code, error.message, error.details) == ("ATTEMPT_LOST", POISON, {"how": "signal SIGABRT"})
            assert [(each["number"], each["reason"]) for each in site.attempts(run.id)] == [(1, "lost")]
            crashed = [each["data"]["how"] for each in site.events(run.id, "attempt.crashed")]
            assert crashed == ["signal SIGABRT"] * 2
            assert len(site.events(run.id, "attempt.isolated")) == 2


@pytest.mark.large
@pytest.mark.parametrize(("innocents", "killers"), [(1, 2)])
def test_hook_calls_beside_hooks_that_kill_their_process_are_made(services, tmp_path, innocents, killers):
    """SYS-20, M-013: a hook is given up only for deaths of processes that it had for itself; steps and other hooks continue."""
    with Site(services, tmp_path, worker=WORKER) as site:
        fleet = site.workers()
        deadly = [site.client.enqueue("hook_pipelines:aborting", 1) for _ in range(killers)]
        calm = [site.client.enqueue("hook_pipelines:lingering", 1) for _ in range(innocents)]
        beside = site.enqueue("enduring")
        owed = lambda: site.rows("SELECT 1 AS n FROM flujo_hook_calls")  # noqa: E731
        ended = lambda: all(run.status() == "succeeded" for run in [*calm, *deadly, beside])  # noqa: E731
        wait_until(lambda: fleet.replace_dead() * 0 or (ended() and not owed()), 120, what=site.log)
        for run in calm:
            assert (site.folder / f"hooks-{run.id}").read_text().splitlines()[-1] == "post_run succeeded"
            assert site.events(run.id, "hook.lost") == []
        for run in deadly:
            assert [event["data"]["times"] for event in site.events(run.id, "hook.lost")] == [WORKER["max_lost"] + 1]
        assert_merged_once(site, beside, ["endure", "after"])


def test_a_suspect_continues_when_the_worker_beside_it_dies(site):
    """Whatever else that worker ran may have killed it."""
    run = site.enqueue("gated")
    for times in (1, 2):
        fleet = site.workers()
        site.wait_for_execution(run.id, "gate", times=times)
        fleet.kill()
    fleet = site.workers()
    apart = site.wait_for_execution(run.id, "gate", times=3)
    assert apart.pid not in fleet.pids
    fleet.kill()
    before = leased_until(site, apart.pid)
    wait_until(lambda: leased_until(site, apart.pid) > before + 2 * BRISK["lease_s"], what=site.log)
    site.open_gate(run.id)
    wait_until(lambda: not alive(apart.pid), what=site.log)
    site.workers()
    assert_merged_once(site, run, GATED)
    assert len(site.executions(run.id, "gate")) == 3


def leased_until(site, pid):
    """When the process's lease will be over, in seconds of the database's clock."""
    until = "SELECT extract(epoch FROM max(lease_until))::float8 AS until FROM flujo_workers WHERE pid = %(pid)s"
    return site.rows(until, pid=pid)[0]["until"]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Alone:
    """A quarantine without a worker around it."""

    def __init__(self, site, quarantine, stores, threads):
        self._site, self._quarantine, self._stores, self._threads = site, quarantine, stores, threads
        self.stop = quarantine.stop

    def perform(self, run):
        """Perform the first attempt of a run apart."""
        [envelope] = self._stores.backlog.envelopes([self._site.attempts(run.id)[0]["key"]])
        return self._quarantine.perform(envelope, "apart")

    @property
    def is_full(self):
        return len(self._quarantine._ready_at) == PLACES

    def has_place_for(self, run):
        """Perform it, if there is a place."""
        try:
            return self.perform(run) == DeliveryResult("merged")
        except NoFreeSlot:
            return False

    def begin(self, run):
        return self._threads.submit(self.perform, run)


@contextmanager
def quarantine_of(site, *, app=None, **worker):
    """A quarantine that finds the acceptance tests' steps."""
    stores = PostgresStores(site.settings.database()).open()
    own = site.settings.worker.model_copy(update=worker)
    settings = site.settings.model_copy(update={"worker": own})
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as threads:
        patch.setenv(FOLDER, str(site.folder))
        patch.syspath_prepend(STEPS)
        quarantine = Quarantine(
            settings, stores, app or Celery("own"), ChildProcesses(settings), is_own_app=app is None
        )
        yield Alone(site, quarantine, stores, threads)
    stores.close()


def test_what_runs_apart_is_concluded_and_what_follows_is_published(site):
    run = site.enqueue("three")
    with quarantine_of(site) as quarantine:
        assert quarantine.perform(run) == DeliveryResult("merged")
    [first] = site.executions(run.id)
    assert first.pid != os.getpid()
    site.workers()
    assert_merged_once(site, run, ["first", "second", "third"])


def test_a_death_is_written_at_once(site):
    """No one waits for its lease."""
    run = site.enqueue("aborting")
    with quarantine_of(site, lease_s=600.0) as quarantine:
        assert quarantine.perform(run) == DeliveryResult("crashed")
    [attempt] = site.attempts(run.id)
    assert (attempt["status"], attempt["worker"], attempt["room"]) == ("running", None, "apart")
    [crash] = site.events(run.id, "attempt.crashed")
    assert crash["data"]["how"] == "signal SIGABRT"
    assert (attempt["loss"]["worker"], attempt["loss"]["how"]) == (crash["data"]["worker"], "signal SIGABRT")


def test_a_process_that_hangs_is_ended_and_has_died(site):
    """One that holds the interpreter cannot be waited for: not by its lease, not by its worker."""
    run = site.enqueue("waiting")
    with quarantine_of(site, lease_s=1.0, renew_s=0.4) as quarantine:
        performing = quarantine.begin(run)
        frozen = site.wait_for_execution(run.id, "gate")
        os.kill(frozen.pid, signal.SIGSTOP)
        assert performing.result(120) == DeliveryResult("crashed")
    assert not alive(frozen.pid)


def test_told_to_stop_it_lets_go_and_no_one_is_to_blame(site):
    """SIGTERM of the worker: what was worked on is handed back at once, and is not lost."""
    run = site.enqueue("waiting")
    with quarantine_of(site) as quarantine:
        performing = quarantine.begin(run)
        begun = site.wait_for_execution(run.id, "gate")
        os.kill(begun.pid, signal.SIGTERM)  # as a supervisor of all processes would: it is the worker that decides
        quarantine.stop()
        assert performing.result(5) in (DeliveryResult("waiting"), DeliveryResult("cancelled"))
    assert not alive(begun.pid)
    assert begun.pid not in site.live_pids()
    [attempt] = site.attempts(run.id)
    assert (attempt["status"], attempt["worker"], attempt["losses"]) == ("ready", None, 0)


@pytest.mark.large
def test_no_more_than_some_begin_apart_at_once_and_a_long_step_keeps_no_suspect_waiting(site):
    """M-013, design §5: a place is taken until the process for it is ready, and a while longer: most that die do so soon.

    Work is picked up 15 s after a kill, whatever other suspects take hours.
    """
    runs = [site.enqueue("waiting") for _ in range(PLACES)]
    with quarantine_of(site) as quarantine:
        performing = [quarantine.begin(run) for run in runs]
        wait_until(lambda: quarantine.is_full, what=site.log)
        another = site.enqueue("three")
        with pytest.raises(NoFreeSlot):
            quarantine.perform(another)
        for run in runs:
            site.wait_for_execution(run.id, "gate")
        begun = time.monotonic()
        wait_until(lambda: quarantine.has_place_for(another), 15, what=site.log)
        print(f"a suspect waited {time.monotonic() - begun:.1f} s for a place and its merge")
        for run in runs:
            site.open_gate(run.id)
        assert [each.result(60) for each in performing] == [DeliveryResult("merged")] * PLACES


def test_someones_app_is_imported_again(site, monkeypatch):
    for name, value in site.settings.as_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(STEPS)
    from shop_app import app

    run = site.enqueue("three")
    with quarantine_of(site, app=app) as quarantine:
        assert quarantine.perform(run) == DeliveryResult("merged")
    monkeypatch.delitem(sys.modules, "shop_app")


@pytest.mark.parametrize(("path", "said"), [(None, "is not in a module"), ("nowhere:app", "No module named 'nowhere'")])
def test_an_app_that_cannot_be_imported_leaves_the_attempt_untouched(site, monkeypatch, path, said):
    monkeypatch.setattr("flujo_worker.recovery.quarantine.import_path_of", lambda _: path)
    run = site.enqueue("three")
    with quarantine_of(site, app=Celery("shop")) as quarantine, pytest.raises(NoProcess, match=said):
        quarantine.perform(run)
    [attempt] = site.attempts(run.id)
    assert (attempt["fence"], attempt["losses"], site.executions(run.id)) == (0, 0, [])


@pytest.fixture(autouse=True)
def own_workers(request):
    """Each test has the workers it started, and no others."""
    yield
    if "site" in request.fixturenames:
        site = request.getfixturevalue("site")
        site.dismiss()
        site.redis.flushdb()
