"""The connections of a worker process after a fan-out; docs/how-to/size.md lists their number and their purposes."""

from urllib.parse import urlsplit

import pytest
from container_checks import enqueue

from tests.support.fleet import PATIENCE_S, STEADY, STEPS, SiteFleet, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.site(worker={**STEADY, "concurrency": 16})]

POSTGRES, REDIS = 4, 5
OPEN = "SELECT count(*) AS open FROM pg_stat_activity WHERE application_name = %(name)s"
BRANCHES = 300


@pytest.mark.parametrize("pool", ["attempts", "threads"])
def test_a_process_has_few_connections(site, pool):
    """Never more to Postgres; to Redis no more once those are closed that only its start needed."""
    database, number = site.settings.database(), int(urlsplit(site.settings.broker()).path[1:])
    url = f"{database}{'&' if '?' in database else '?'}application_name={pool}"

    def clients():
        return {each["id"] for each in site.redis.client_list() if int(each["db"]) == number}

    run = enqueue(site, "wide", items=list(range(BRANCHES)))
    others, most = clients(), []
    counted = site.settings.with_services(url, site.settings.broker())
    fleet = SiteFleet(counted, 1, site.folder, STEPS, ["--pool", pool])
    fleet.start()
    try:
        wait_until(
            lambda: most.extend(each["open"] for each in site.rows(OPEN, name=pool)) or (run.status() == "succeeded"),
            what=site.log,
        )
        assert run.result(timeout=PATIENCE_S).run_status == "succeeded"
        assert 2 <= max(most) <= POSTGRES
        wait_until(lambda: 2 <= len(clients() - others) <= REDIS, 20, what=lambda: str(site.redis.client_list()))
    finally:
        fleet.kill()
