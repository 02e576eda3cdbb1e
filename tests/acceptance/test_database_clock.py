"""Time that passes at once on real services: everything that is due, in order."""

from datetime import timedelta

import pytest

from flujo_client import Schedule
from flujo_client.config.manager import Settings
from flujo_client.contract.schedules import run_id_of
from flujo_client.errors import ConfigurationError
from flujo_worker.testing import DatabaseClock
from tests.support.fleet import BRISK, PATIENCE_S, Site, one_process, wait_until

pytestmark = pytest.mark.acceptance

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def site(services, tmp_path_factory):
    with Site(services, tmp_path_factory.mktemp("site"), worker=BRISK) as site:
        site.standing()
        yield site


@pytest.fixture(scope="module")
def clock(site):
    """Installed under workers that run already."""
    return DatabaseClock(site.settings, patience_s=PATIENCE_S)


def paused(site, name):
    run = site.client.enqueue(f"human_pipelines:{name}", [])
    wait_until(lambda: run.status() == "paused", what=site.log)
    return run


@one_process
def test_questions_of_days_expire_in_order(site, clock):
    """A chain of waits takes its full length; nothing moves before its time, no worker loses its lease."""
    run, began, [worker] = paused(site, "patient"), clock.now(), site.live_pids()
    clock.pass_time(29 * DAY_S)
    assert (run.status(), len(run.approvals())) == ("paused", 1)
    clock.pass_time(1.5 * DAY_S)  # the first question has expired after 30 days, the second after one more day
    assert run.status() == "paused"
    clock.pass_time()
    assert run.result(timeout=PATIENCE_S).output == "late"
    assert 31 * DAY_S < clock.now() - began < 31 * DAY_S + 600
    assert site.live_pids() == {worker}
    assert not site.events(run.id, "attempt.lost")
    [row] = site.rows("SELECT ended_at - created_at AS took FROM flujo_runs WHERE id = %(run)s", run=run.id)
    assert row["took"].days == 31


@one_process
def test_schedules_fire_in_order_as_time_passes(site, clock):
    site.client.add_schedule(Schedule(name="hourly", pipeline="acceptance_pipelines:three", input=[], every_s=3600))
    clock.pass_time(3 * 3600)
    [row] = site.client.schedules()
    site.client.remove_schedule("hourly")
    fired = site.rows("SELECT id, status FROM flujo_runs WHERE metadata ->> 'schedule' = 'hourly' ORDER BY id")
    slots = [row.last_slot - timedelta(hours=n) for n in (2, 1, 0)]
    assert fired == [{"id": run_id_of("hourly", slot), "status": "succeeded"} for slot in slots]


def test_what_no_worker_does_is_named(site, clock):
    hasty = DatabaseClock(site.settings, patience_s=0.2)
    run = site.client.enqueue("human_pipelines:patient", [], queue="nowhere")
    with pytest.raises(TimeoutError, match=f"attempt {run.id}"):
        hasty.pass_time()
    run.cancel()


def test_a_database_with_runs_is_refused(services, tmp_path):
    with Site(services, tmp_path, worker=BRISK) as other:
        other.client.enqueue("human_pipelines:patient", [])
        with pytest.raises(ConfigurationError, match="has runs"):
            DatabaseClock(other.settings)


def test_production_is_refused(site):
    with pytest.raises(ConfigurationError, match="production"):
        DatabaseClock(site.settings.model_copy(update={"mode": "production"}))


def test_a_search_path_in_the_url_is_refused(site, clock):
    url = site.settings.database()
    there = f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3Dpublic"
    settings = Settings.model_validate({"database_url": there, "broker_url": site.settings.broker()})
    with pytest.raises(ConfigurationError, match="search path"):
        DatabaseClock(settings)
