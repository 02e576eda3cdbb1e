"""Runs that sleep, or begin later, are rows: they outlive their worker, Redis and a restart of Postgres, and go on at their time."""

import pytest
from sleep_pipelines import NAP_S

from tests.support.fleet import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.large, pytest.mark.usefixtures("own_workers")]

ASLEEP = "SELECT run_id FROM flujo_attempts WHERE step = 'nap' AND kind = 'step' AND status = 'ready' AND available_at > now()"
SLEPT = """SELECT extract(epoch FROM a.started_at - a.available_at)::float8 AS late_s,
                  extract(epoch FROM a.started_at - a.created_at)::float8 AS slept_s
           FROM flujo_attempts a WHERE step = 'nap' AND kind = 'step'"""


@pytest.fixture(scope="module")
def services(services_to_break):
    """Return services that no other test process uses."""
    return services_to_break


def test_sleeps_outlive_kill_9_flushall_and_a_restart_of_postgres(site, services):
    fleet = site.workers()
    runs = [site.client.enqueue(f"sleep_pipelines:{name}", []) for name in ("for_seconds", "until_then")]
    wait_until(lambda: len(site.rows(ASLEEP)) == len(runs), what=site.log)
    later = site.client.enqueue("sleep_pipelines:for_seconds", [], delay_s=2.0)
    assert runs[0].explain().text.startswith("Sleeps at nap until ")
    assert later.explain().text.startswith("Not begun: it waits for its time, ")
    fleet.kill()
    site.redis.flushall()
    services.restart_postgres()
    site.workers()
    for run in [*runs, later]:
        assert run.result(timeout=60).output == ["before", "after"]
        assert [each.step for each in site.executions(run.id)] == ["before", "after"]
    for row in site.rows(SLEPT):
        assert row["late_s"] >= 0
        assert row["slept_s"] >= NAP_S - 1
