"""kill -9 between the merge of branches, the counting of their parts, and the signal that starts the join: every fan-out is joined once."""

import pytest
from container_checks import enqueue, succeeded

from tests.support.fleet import BRISK, own_pool, wait_until

pytestmark = [
    pytest.mark.acceptance,
    own_pool,  # Celery's tracer counts the parts in its pools
    pytest.mark.usefixtures("own_workers"),
    pytest.mark.site(worker={**BRISK, "max_lost": 10}),
]

BRANCHES, AT_ONCE = 6, 4
PLACES = ["parts_due", "parts_counted"]
"""Merged and not counted; counted, and Celery has not counted the last one, which signals."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [1, pytest.param(120, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("place", PLACES)
def test_a_process_that_dies_before_it_counts_or_signals_costs_no_fan_out(site, place, kills):
    """Nothing is counted again: the sweeper reads from rows that all branches are closed."""
    site.standing()
    for first in range(0, kills, AT_ONCE):
        markers = [site.folder / f"{place}-{kills}-{number}" for number in range(first, min(kills, first + AT_ONCE))]
        armed = [site.unready_workers(failpoints=f"{place}:kill:{marker}") for marker in markers]
        runs = []
        wait_until(
            lambda fleets=armed: all(map(site.works, fleets)) or any(not each.pids for each in fleets), what=site.log
        )
        while not all(marker.exists() for marker in markers):
            assert len(runs) < 400 * AT_ONCE
            runs += [enqueue(site, "wide", items=list(range(BRANCHES))) for _ in range(AT_ONCE)]
            for run in runs[-AT_ONCE:]:
                run.result(timeout=60)
        for run in runs:
            assert succeeded(site, run).output == list(range(1, BRANCHES + 1))
        for fleet in armed:
            wait_until(lambda fleet=fleet: not fleet.pids, what="the armed process has died")
