"""Steps that kill their process, beside steps that do nothing wrong: the killers fail as lost, and nobody else does."""

from __future__ import annotations

import pytest
from fleet import BRISK, Site, assert_merged_once, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]

WORKER = {**BRISK, "max_lost": 1}
LIVE = ("queued", "running")


def enduring_among_killers(site, fleet, *, innocents, killers):
    """Enqueue both, replace every worker that dies, and wait until all runs have ended."""
    calm = [site.enqueue("enduring") for _ in range(innocents)]
    for run in calm[: site.settings.worker.concurrency]:
        site.wait_for_execution(run.id, "endure")
    deadly = [site.enqueue("aborting") for _ in range(killers)]
    wait_until(lambda: fleet.mend() * 0 or all(run.status() not in LIVE for run in [*calm, *deadly]), 120, what=site.log)
    return calm, deadly


@pytest.mark.parametrize(("innocents", "killers"), [(6, 2), (2, 6)])
def test_neighbours_of_steps_that_kill_their_process_succeed(services, tmp_path, innocents, killers):
    """M-013, C-37: an attempt fails as lost only for deaths of processes that it had for itself."""
    with Site(services, tmp_path, worker=WORKER) as site:
        calm, deadly = enduring_among_killers(site, site.workers(), innocents=innocents, killers=killers)
        for run in calm:
            assert_merged_once(site, run, ["endure", "after"])
        for run in deadly:
            error = run.result().error
            assert (error.code, error.message) == (
                "ATTEMPT_LOST",
                "the process died while this step ran alone, 2 times",
            )
            assert [(each["number"], each["reason"]) for each in site.attempts(run.id)] == [(1, "lost")]
