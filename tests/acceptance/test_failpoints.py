"""A process is made to fail at each named place; the run finishes right, and every step is merged once."""

import pytest

from flujo_worker.failpoints import NAMES
from tests.support.fleet import BRISK, assert_merged_once, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.site(worker=BRISK)]

ELSEWHERE = (
    "chord_opened",
    "parts_due",
    "parts_counted",
    "runs_admitted",
    "before_parent_ring",
    "hook_call_taken",
    "hooks_called",
    "task_taken",
    "run_started",
    "task_ended",
    "schedule_fired",
)
"""Places that a run without containers, limits, hooks and canvas does not come to; their tests are in test_lost_in_containers.py, test_lost_parts.py,
test_admission.py, test_child_runs_survive.py, test_hooks_in_workers.py, test_canvases.py and test_schedules_in_workers.py. Those of durable agents are in test_durable_agents.py,
test_durable_kills.py and test_durable_batches.py."""
ACTIONS = {
    name: "lose" if name == "answer_lost" else "kill"
    for name in NAMES
    if name not in ELSEWHERE and not name.startswith(("unit_", "batch_"))
}


@pytest.fixture(scope="module", autouse=True)
def deadlocks(site):
    """The law of one lock order: no test of this module made Postgres break a deadlock."""
    count = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = site.rows(count)
    yield
    assert site.rows(count) == before


@pytest.fixture(scope="module")
def survivor(site):
    """The worker that carries on."""
    return site.workers()


@pytest.mark.parametrize(("name", "action"), ACTIONS.items())
def test_a_process_that_fails_here_costs_no_run(site, survivor, name, action):
    """M-001, M-013: kill -9 (or a lost answer) at this place."""
    marker = site.folder / name
    only_sweeps = ("--queues", "idle") if name == "sweep_published" else ()
    armed = site.workers(failpoints=f"{name}:{action}:{marker}", arguments=only_sweeps)
    runs = []
    while not marker.exists():
        assert len(runs) < 200
        runs.append(site.enqueue("three", context={}))
        with site.connection() as connection:  # never published by its client, so the sweeper has something to do
            runs.append(site.enqueue("three", connection=connection))
        for run in runs[-2:]:  # a worker that may not judge leases yet leaves the sweeps to others: give it time
            run.result(timeout=60)
    for run in runs:
        assert_merged_once(site, run, ["first", "second", "third"])
    if action == "kill":
        wait_until(lambda: not armed.pids, what="the armed process has died")
    armed.kill()
    assert survivor.pids
