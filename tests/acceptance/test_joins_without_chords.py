"""Fan-outs in real processes where nothing counts branches: two workers look, each after its merges, and no one sweeps."""

import pytest
from container_checks import assert_joined_once, enqueue, rings, starts, succeeded

from tests.support.fleet import STEADY, wait_until

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.site(worker={**STEADY, "sweep_s": 3600, "concurrency": 20}, chords=False),
]


@pytest.fixture(scope="module", autouse=True)
def fleet(site):
    return site.workers(2)


def test_joins_inside_joins_and_many_branches_are_signalled_once_by_workers(site):
    """SYS-13, M-007: seven joins three deep in each of five runs, and two of a hundred branches."""
    deep = [enqueue(site, "deep", n) for n in range(5)]
    wide = [enqueue(site, "wide", items=list(range(100))) for _ in range(2)]
    for run in deep:
        assert (succeeded(site, run).final_pipeline_context.count, starts(site, run)) == (8, {"leaf": 8, "after": 1})
    for run in wide:
        assert succeeded(site, run).output == list(range(1, 101))
        assert_joined_once(site, run)
    assert rings(site, [*deep, *wide]) == {"worker": 5 * 7 + 2}
    assert site.redis.keys("*chord*") == []


@pytest.mark.parametrize(("failing", "ends"), [([], "succeeded"), (["a", "b"], "failed")])
def test_branches_that_end_at_the_same_instant_in_two_processes(site, failing, ends):
    """M-443: the last two of each run pass one gate; under `propagate` two of them abort at once."""
    gate, name = f"instant-{ends}", "fans.parallel_context_update_propagate"
    runs = [enqueue(site, name, "in", gated=["a", "b"], failing=failing, gate=gate) for _ in range(10)]
    wait_until(lambda: all(starts(site, run).total() == 3 for run in runs), what=site.log)
    site.open_gate(gate)
    assert {run.result(timeout=60).run_status for run in runs} == {ends}, site.log()
    for run in runs:
        assert_joined_once(site, run)
    assert rings(site, runs) == {"worker": 10}
