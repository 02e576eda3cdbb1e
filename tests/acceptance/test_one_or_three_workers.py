"""The same workload on one worker process and on three: the results are the same (SYS-32, U-15)."""

from collections import Counter

import pytest
from container_checks import assert_joined_once, enqueue, starts, told_of

from tests.support.fleet import one_process

pytestmark = pytest.mark.acceptance

WORKLOAD = [
    ("mixed", 0, {"goal": 3}),
    ("deep", "in", {}),
    ("opening", "in", {}),
    ("merging", "in", {}),
    ("rounds", 0, {"goal": 10}),
    ("wide", None, {"items": list(range(20))}),
    ("fans.parallel_overwrite_ignore", "in", {"failing": ["b"]}),
    ("fans.map_context_update_ignore", "in", {}),
    ("fans.router_keep_first_propagate", "in", {}),
    ("fans.parallel_error_on_conflict_propagate", "in", {}),
]


@one_process
def test_one_and_three_processes_give_the_same(site):
    """M-011: results, histories, contexts, stories and totals; timing aside."""
    site.workers(1)
    alone = outcomes(site, processes=1)
    site.workers(2)
    assert outcomes(site, processes=3) == alone
    assert len(alone) == len(WORKLOAD)


def outcomes(site, *, processes):
    """The result of each pipeline of the workload, with all of them under way at once and every process at work."""
    runs = {name: enqueue(site, name, value, **context) for name, value, context in WORKLOAD}
    ended = {name: portrait(site, run) for name, run in runs.items()}
    assert len({each.pid for run in runs.values() for each in site.executions(run.id)}) == processes
    return ended


def portrait(site, run):
    """All there is to a run but for times, ids, and the order in which branches happened to end."""
    result = run.result(timeout=60)
    assert_joined_once(site, run)
    attempts = Counter(
        (each["key"].removeprefix(run.id), each["kind"], each["status"]) for each in site.attempts(run.id)
    )
    story = Counter((event["name"], (event["attempt"] or "").removeprefix(run.id)) for event in events(site, run))
    return {
        "ended": (result.run_status, result.error and result.error.message),
        "output": result.unchecked().output,
        "context": result.final_pipeline_context,
        "history": told_of(result.step_history),
        "totals": (result.total_cost_usd, result.total_tokens),
        "attempts": attempts,
        "story": story,
        "scopes": site.rows(
            "SELECT address, version > 0 AS is_merged, status, place FROM flujo_scopes WHERE run_id = %(run)s ORDER BY 1",
            run=run.id,
        ),
        "begun": starts(site, run),
    }


def events(site, run):
    return site.rows("SELECT name, attempt FROM flujo_events WHERE run_id = %(run)s", run=run.id)
