"""Fan-outs in real processes: every kind, strategy and ending at once; many, deep and wide ones; branches that close together."""

import time
from collections import Counter
from itertools import product

import pytest
from container_checks import (
    DEADLOCKS,
    LIVE,
    assert_joined_once,
    assert_nothing_left,
    begun_in,
    enqueue,
    rings,
    since,
    starts,
    succeeded,
)
from container_pipelines import KINDS, LETTERS, ON_FAILURE, STRATEGIES

from tests.support.fleet import PATIENCE_S, STEADY, wait_until

# Room for two hundred branches that wait at a gate, and no one who sweeps: what is signalled is signalled by chords and workers.
pytestmark = [pytest.mark.acceptance, pytest.mark.site(worker={**STEADY, "sweep_s": 3600, "concurrency": 110})]

NOTHING = ({}, [], 0)
MERGED = {
    "context_update": ({"a": 1, "b": 1, "c": 1}, ["b", "c"], 2),
    "overwrite": ({"c": 1}, ["c"], 1),
    "keep_first": ({"a": 1}, ["b"], 1),
    "no_merge": NOTHING,
    "callable": ({}, LETTERS, 32),
}
"""What table, seen and count are when three branches have succeeded."""

MERGED_OF_TWO = {
    "context_update": ({"a": 1, "b": 1}, ["b"], 1),
    "overwrite": ({"b": 1}, ["b"], 1),
    "keep_first": ({"a": 1}, ["b"], 1),
    "error_on_conflict": ({"a": 1, "b": 1}, ["b"], 1),
    "no_merge": NOTHING,
    "callable": ({}, ["a", "b"], 21),
}
"""The same when the third has failed, and that is ignored."""


@pytest.fixture(scope="module", autouse=True)
def fleet(site):
    return site.workers(2)


@pytest.fixture(autouse=True)
def no_deadlock(site):
    """The law of one lock order."""
    before = site.rows(DEADLOCKS)
    yield
    assert site.rows(DEADLOCKS) == before


CASES = list(product(KINDS, STRATEGIES, ON_FAILURE))
ENDINGS = {"succeed": {}, "fail": {"failing": ["c"]}, "cancel": {"gated": ["b"], "gate": "shut"}}


@pytest.fixture(scope="module")
def matrix(site, fleet):
    """All of it at once; the runs that are to be cancelled are, while their second branch runs.

    They are cancelled when the others have ended: a cancel asks a worker to sweep, and a sweep signals every join that is slow. Without
    one, a join whose signal is lost is never made, and its run does not end.
    """
    runs = {
        (*case, ending): enqueue(site, "fans." + "_".join(case), "in", **context)
        for case in CASES
        for ending, context in ENDINGS.items()
    }
    waiting = [runs[*case, "cancel"] for case in CASES]
    wait_until(lambda: all(begun_in(site)[run.id]["b"] for run in waiting), what=site.log)
    for run in runs.values():
        if run not in waiting:
            run.result(timeout=PATIENCE_S)
    for run in waiting:
        assert run.cancel(reason="midway")
    for run in waiting:
        run.result(timeout=PATIENCE_S)
    control_queue = site.settings.broker_key_prefix + site.settings.worker.control_queue
    wait_until(lambda: not site.redis.llen(control_queue), what=site.log)
    return runs


@pytest.mark.parametrize(("kind", "strategy", "on_failure"), CASES)
def test_branches_that_succeed_are_merged_once(site, matrix, kind, strategy, on_failure):
    """SYS-13, SYS-14, M-440, M-442: outputs in declared order, each branch performed once, the context as by hand."""
    run = matrix[kind, strategy, on_failure, "succeed"]
    result = run.result(timeout=PATIENCE_S)
    assert_joined_once(site, run)
    expected = Counter([*LETTERS, *(["choose"] if kind == "router" else [])])
    if strategy == "error_on_conflict":
        assert result.run_status == "failed"
        first, second = ("fan#2", "fan#3") if kind == "map" else ("b", "c")
        assert f"branches '{first}' and '{second}' both changed seen" in result.error.message
        assert (written(result), starts(site, run)) == (NOTHING, expected)
        return
    assert result.run_status == "succeeded", site.log()
    assert result.output == (["A", "B", "C"] if kind == "map" else {"a": "A", "b": "B", "c": "C"})
    assert written(result) == named(MERGED[strategy], kind)
    assert starts(site, run) == expected + Counter(["after"])
    assert [(each.name, each.output, each.success) for each in result.step_history[0].step_history] == [
        (name, letter.upper(), True) for name, letter in zip(names(kind), LETTERS, strict=True)
    ]
    assert result.total_cost_usd == pytest.approx(0.75)


@pytest.mark.parametrize(("kind", "strategy", "on_failure"), CASES)
def test_a_branch_that_fails_is_told_and_merges_nothing(site, matrix, kind, strategy, on_failure):
    """M-443, M-006: ignored, the others are merged; propagated, the step has failed and the context is untouched."""
    run = matrix[kind, strategy, on_failure, "fail"]
    result = run.result(timeout=PATIENCE_S)
    assert_joined_once(site, run)
    fan = result.step_history[0]
    assert set(starts(site, run).values()) == {1}
    assert next(each.success for each in fan.step_history if each.name == names(kind)[2]) is False
    if on_failure == "propagate":
        assert (result.run_status, written(result)) == ("failed", NOTHING)
        assert "no c" in fan.feedback
        return
    assert result.run_status == "succeeded", site.log()
    assert written(result) == named(MERGED_OF_TWO[strategy], kind)
    assert [each.success for each in fan.step_history] == [True, True, False]


@pytest.mark.parametrize(("kind", "strategy", "on_failure"), CASES)
def test_a_run_cancelled_midway_has_merged_nothing_and_leaves_nothing(site, matrix, kind, strategy, on_failure):
    """M-010: whatever its branches had done, and whoever they were."""
    run = matrix[kind, strategy, on_failure, "cancel"]
    result = run.result(timeout=PATIENCE_S)
    assert (result.run_status, written(result)) == ("cancelled", NOTHING)
    assert_nothing_left(site, run)
    assert [each for each in site.attempts(run.id) if each["kind"] == "join"] == []


def names(kind):
    return [f"fan#{n}" for n in (1, 2, 3)] if kind == "map" else LETTERS


def named(merged, kind):
    """What the merge of the user's own writes down are the names of branches, and a map's are numbers."""
    table, seen, count = merged
    if kind == "map" and seen[:1] == ["a"]:
        seen = names(kind)[: len(seen)]
    return table, seen, count


def written(result):
    context = result.final_pipeline_context
    return context.table, context.seen, context.count


@pytest.mark.parametrize("count", [5, pytest.param(50, marks=pytest.mark.chaos)])
def test_runs_three_deep_at_once(site, capsys, count):
    """SYS-13, M-007: seven joins in each run, all of them signalled by chords or workers."""
    began = time.monotonic()
    runs = [enqueue(site, "deep", n) for n in range(count)]
    for n, run in enumerate(runs):
        result = succeeded(site, run)
        pair = {"left": n, "right": n}
        assert result.output == dict.fromkeys(("left", "right"), dict.fromkeys(("left", "right"), pair))
        assert (result.final_pipeline_context.count, starts(site, run)) == (8, {"leaf": 8, "after": 1})
    print_time(capsys, f"{count} runs, three deep", began, by := rings(site, runs))
    assert by.total() == count * 7
    assert by["sweeper"] == 0


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.chaos)])
def test_many_branches(site, capsys, count):
    """SYS-13: all merged, in order, and the chord rang. A thousand of them under `make chaos`, for the seconds they take."""
    began = time.monotonic()
    run = enqueue(site, "wide", items=list(range(count)))
    result = run.result(timeout=PATIENCE_S)
    print_time(capsys, f"{count} branches", began, by := rings(site, [run]))
    assert (result.output, result.final_pipeline_context.count) == (list(range(1, count + 1)), count)
    assert set(starts(site, run).values()) == {1}
    assert by == {"chord": 1}
    assert_joined_once(site, run)


@pytest.mark.large
def test_two_hundred_branches_that_close_together(site, capsys):
    """SYS-13: all branches wait at one gate, and no join signal is missed. The workers are new: those of earlier tests keep more connections."""
    site.dismiss()
    site.workers(2)
    run = enqueue(site, "wide", items=list(range(200)), gated=["add"], gate="wide")
    wait_until(lambda: starts(site, run).total() == 200, what=site.log)
    began = time.monotonic()
    site.open_gate("wide")
    assert succeeded(site, run).final_pipeline_context.count == 200
    print_time(capsys, "200 branches closing together", began, by := rings(site, [run]))
    assert by == {"chord": 1}
    database = str(site.redis.get_connection_kwargs()["db"])
    assert sum(each["db"] == database for each in site.redis.client_list()) <= 25, (
        "two workers share pools of connections"
    )


@pytest.mark.parametrize(("failing", "ends"), [([], "succeeded"), (["a", "b"], "failed")])
def test_branches_that_end_at_the_same_instant(site, capsys, failing, ends):
    """SYS-13, M-443: 15 runs whose branches pass one gate; under `propagate` two of them abort at once."""
    gate = f"instant-{ends}"
    name = "fans.parallel_context_update_propagate"
    runs = [enqueue(site, name, "in", gated=["a", "b"], failing=failing, gate=gate) for _ in range(15)]
    wait_until(lambda: sum(begun_in(site)[run.id].total() for run in runs) == 45, what=site.log)
    began = time.monotonic()
    site.open_gate(gate)
    assert {run.result(timeout=PATIENCE_S).run_status for run in runs} == {ends}
    print_time(capsys, f"15 runs with branches that {ends}", began, by := rings(site, runs))
    for run in runs:
        assert_joined_once(site, run)
        assert written(run.result()) == (NOTHING if failing else MERGED["context_update"])
    assert by["sweeper"] == 0


def test_siblings_of_a_failed_branch_are_cancelled_promptly(site, capsys):
    """M-443: a sibling that would wait forever is told at its worker's next renewal; ten of them leave room for a busy machine."""
    run = enqueue(site, "fans.parallel_context_update_propagate", "in", gated=["a", "c"], failing=["c"], gate="prompt")
    wait_until(lambda: starts(site, run).total() == 3, what=site.log)
    began = time.monotonic()
    site.open_gate("prompt-c")
    assert run.result(timeout=PATIENCE_S).run_status == "failed"
    took = time.monotonic() - began
    assert took < 10 * STEADY["renew_s"]
    assert_joined_once(site, run)
    print_time(capsys, "a failure stops its sibling", began, rings(site, [run]))


def print_time(capsys, what, began, by):
    with capsys.disabled():
        print(f"\n{what}: {since(began)}, joins rung by {dict(by)}")


@pytest.mark.usefixtures("matrix")
def test_no_join_of_this_module_needed_the_sweeper(site):
    """Without faults its share is 0, and nothing is left of any run."""
    by = site.rows("SELECT DISTINCT data ->> 'by' AS by FROM flujo_events WHERE name = 'join.rung'")
    assert {row["by"] for row in by} <= {"chord", "worker"}
    assert site.rows("SELECT key FROM flujo_attempts WHERE status = ANY(%(live)s)", live=LIVE) == []
