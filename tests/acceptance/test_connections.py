"""The connections of a worker process after a fan-out; docs/how-to/size.md lists their number and their purposes."""

from urllib.parse import urlsplit

import pytest
from container_checks import enqueue

from tests.support.fleet import PATIENCE_S, STEADY, STEPS, SiteFleet, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.site(worker={**STEADY, "concurrency": 16})]

POSTGRES, REDIS = 4, 5
OPEN = "SELECT state, backend_start::text, query FROM pg_stat_activity WHERE application_name = %(name)s"
BRANCHES = 300


@pytest.mark.parametrize("pool", ["attempts", "threads"])
def test_a_process_has_few_connections(site, pool):
    """It opens at most 4 to Postgres, not counting closed ones whose backends are still ending, and keeps at most 5 to Redis after its start."""
    database, number = site.settings.database(), int(urlsplit(site.settings.broker()).path[1:])
    url = f"{database}{'&' if '?' in database else '?'}application_name={pool}"

    def clients():
        return {each["id"] for each in site.redis.client_list() if int(each["db"]) == number}

    def opened():
        return site.rows(OPEN, name=pool)

    def has_few():
        most.append(len(opened()))
        if most[-1] > POSTGRES:  # the start closed one, and its backend ends a moment later
            wait_until(lambda: len(opened()) <= POSTGRES, 5, what=lambda: str(opened()))
        return run.status() == "succeeded"

    run = enqueue(site, "wide", items=list(range(BRANCHES)))
    others, most = clients(), []
    counted = site.settings.with_services(url, site.settings.broker())
    fleet = SiteFleet(counted, 1, site.folder, STEPS, ["--pool", pool])
    fleet.start()
    try:
        wait_until(has_few, what=site.log)
        assert run.result(timeout=PATIENCE_S).run_status == "succeeded"
        assert max(most) >= 2
        assert len(opened()) <= POSTGRES
        wait_until(lambda: 2 <= len(clients() - others) <= REDIS, 60, what=lambda: str(site.redis.client_list()))
    finally:
        fleet.kill()
