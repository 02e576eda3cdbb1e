"""Postgres stopped as in a crash while hundreds of runs are under way: nothing is lost, merged twice, stuck or spent unrecorded."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from fleet import PATIENCE_S, wait_until
from paid_pipelines import CALLS

from flujo_client.contract.limits import UsageLimits

pytestmark = pytest.mark.acceptance

LIMITS = UsageLimits(total_tokens_limit=10**12)
"""No run comes near it: all that it does is to have every call reserved and settled."""

ORDERS = (("row", {}), ("fan", {}), ("rounds", {}), ("row", {"limits": LIMITS}))
MERGES = """
SELECT run_id, count(*) AS merges, count(DISTINCT (address, step)) AS steps FROM flujo_attempts
WHERE kind = 'step' AND status = 'succeeded' GROUP BY run_id
"""
SPENT = "SELECT run_id, input_tokens FROM flujo_spends WHERE input_tokens > 0"
SETTLED = "SELECT scope, settled_tokens FROM flujo_budgets"


@pytest.fixture(scope="module")
def services(services_to_break):
    """Return services that no other test process uses: they are crashed here."""
    return services_to_break


def test_runs_outlive_crashes_of_postgres(site):
    """M-001, M-013, design §5: each call that was made is on record, and each step is merged once."""
    crash_under_load(site, seed=0, runs=80, crashes=2)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(1, 21))
def test_hundreds_of_runs_outlive_crashes_of_postgres(site, seed):
    """The same, longer."""
    crash_under_load(site, seed=seed, runs=400, crashes=3)


def crash_under_load(site, *, seed, runs, crashes):
    """Crash Postgres at random moments between the first call and the last, and compare what tells of the calls."""
    site.standing(2)
    before = len(executions(site))
    orders = [
        (shape, run)
        for shape, options in ORDERS
        for run in site.client.enqueue_many(
            f"paid_pipelines:{shape}", ["in"] * (runs // len(ORDERS)), context={}, **options
        )
    ]
    calls = sum(CALLS[shape] for shape, _ in orders)
    draw = random.Random(seed)
    for moment in sorted(draw.uniform(0.0, 0.8) for _ in range(crashes)):
        wait_until(lambda moment=moment: len(executions(site)) - before >= moment * calls, what=site.log)
        site.services.restart_postgres("immediate")
    results = [(shape, run.id, run.result(timeout=PATIENCE_S)) for shape, run in orders]
    wait_until(lambda: not site.stuck(), 30, what=lambda: f"{site.stuck()}\n{site.log()}")
    made = executions(site)
    assert_merged_once(site, results, made)
    assert_spent(site, made)
    repeated = len(made) - before - calls
    print(f"seed {seed}: {crashes} crashes, {len(orders)} runs, {calls} calls merged, {repeated} more were made")


def executions(site):
    """The effects themselves: the run and the amount of each call that was made, from a file that no server keeps."""
    ledger = site.folder / "ledger"
    if not ledger.exists():
        return []
    return [(run, int(amount)) for run, amount in map(str.split, ledger.read_text().splitlines())]


def assert_merged_once(site, results, made):
    """Each run succeeded, and each of its steps has put the amount of one of its calls into the context, once."""
    merged = [(run, amount) for _, run, result in results for amount in result.final_pipeline_context.amounts]
    assert Counter(merged) - Counter(made) == {}
    steps = {row["run_id"]: (row["merges"], row["steps"]) for row in site.rows(MERGES)}
    for shape, run, result in results:
        assert (result.run_status, len(result.final_pipeline_context.amounts)) == ("succeeded", CALLS[shape])
        assert steps[run] == (CALLS[shape], CALLS[shape])


def assert_spent(site, made):
    """What was recorded is what was called, to the last call; and budgets have settled as much."""
    assert Counter((row["run_id"], row["input_tokens"]) for row in site.rows(SPENT)) == Counter(made)
    spent = Counter()
    for run, amount in made:
        spent[f"run:{run}"] += amount
    settled = {row["scope"]: row["settled_tokens"] for row in site.rows(SETTLED)}
    assert settled
    assert settled == {scope: spent[scope] for scope in settled}
