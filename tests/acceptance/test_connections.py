"""What a worker process has open after a fan-out: docs/how-to/size.md says how many connections, and for what."""

import pytest
from container_checks import enqueue

from tests.support.fleet import PATIENCE_S, STEADY, STEPS, SiteFleet, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.site(worker={**STEADY, "concurrency": 16})]

POSTGRES = 4
OPEN = "SELECT count(*) AS open FROM pg_stat_activity WHERE application_name = %(name)s"
BRANCHES = 300


@pytest.mark.parametrize("pool", ["attempts", "threads"])
def test_a_process_has_few_connections(site, pool):
    database = site.settings.database()
    url = f"{database}{'&' if '?' in database else '?'}application_name={pool}"
    most, run = [], enqueue(site, "wide", items=list(range(BRANCHES)))
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
    finally:
        fleet.kill()
