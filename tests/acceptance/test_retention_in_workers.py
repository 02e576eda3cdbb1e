"""Workers delete runs whose retention is over, and nothing else, while they work."""

import random

import pytest
from acceptance_pipelines import LARGE, Visits

from tests.support.fleet import wait_until

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.site(worker={"sweep_s": 0.2}, retention={"succeeded_days": 1}, workers=2),
]


def test_workers_delete_ended_runs_and_what_only_these_referred_to(site):
    """A run of yesterday, with large values, goes; one that has just ended, one that is live, and what they refer to stay."""
    bags = [random.Random(n).randbytes(LARGE // 2).hex() for n in range(2)]
    old, young = (site.enqueue("large", context=Visits(luggage=bag)) for bag in bags)
    gated = site.enqueue("gated")
    for run in (old, young):
        run.result(timeout=60)
    blobs = "SELECT digest FROM flujo_blobs"
    before = site.rows(blobs)
    assert before
    with site.connection() as connection:
        connection.execute("UPDATE flujo_runs SET ended_at = now() - interval '2 days' WHERE id = %s", [old.id])
        connection.commit()
        wait_until(lambda: not site.rows("SELECT 1 FROM flujo_runs WHERE id = %(run)s", run=old.id), what=site.log)
        # Not before: a look at them between a look at the runs and the next one would mark what the old run refers to.
        connection.execute("UPDATE flujo_blobs SET touched_at = now() - interval '2 days'")
        connection.commit()
    assert site.attempts(old.id) == []
    wait_until(lambda: len(site.rows(blobs)) < len(before), what=site.log)
    wait_until(lambda: not site.rows("SELECT 1 FROM flujo_sweeps WHERE swept_to IS NOT NULL"), what=site.log)
    site.open_gate(gated.id)
    assert gated.result(timeout=60).run_status == "succeeded"
    assert young.result(timeout=60).final_pipeline_context.luggage.startswith(bags[1])
