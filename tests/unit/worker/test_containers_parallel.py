"""Fan-outs, through the engine in one process: how many branches, what is merged and how, what a failure means, lanes (M-445, U-05)."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from container_parts import (
    SPENT,
    TWICE,
    Flaky,
    Notes,
    WatchedEngine,
    assert_attributed,
    at,
    bare,
    fails,
    more,
    note,
    of,
    paid,
    raises,
    scopes,
    seen,
    step,
)
from pydantic import BaseModel, Field

from flujo_client.errors import NonRetryableError, PipelineAbortSignal
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step
from flujo_worker.agents.answer import AgentAnswer
from tests.support.breadth import large

pytestmark = pytest.mark.engine(kind=WatchedEngine)


def fan(branches=None, **options):
    return Step.parallel("fan", {"a": step("x"), "b": step("y")} if branches is None else branches, **options)


def wrote(result):
    return result.final_pipeline_context


@pytest.mark.parametrize("count", [0, 1, 2, large(1000)])
def test_any_number_of_branches(engine, count):
    """SYS-13, M-444: outputs by branch, in declared order, each result in the history."""
    result = engine.run(bare(fan({f"b{n}": step("more", more) for n in range(count)}), step("after")), 1)
    found = at(result, "fan")
    assert result.success
    assert result.output == {f"b{n}": 2 for n in range(count)}
    assert list(result.output) == [each.name for each in found.step_history] == found.metadata_["executed_branches"]
    assert scopes(engine, result)["fan"] == "succeeded"


def test_a_list_of_branches_is_named_by_its_places(engine):
    """C-17."""
    assert engine.run(bare(fan([step("x"), step("y", more)])), 1).output == {"0": 1, "1": 2}


def test_a_branch_may_have_many_steps(engine):
    long = Pipeline([step(f"s{n}", more) for n in range(4)])
    assert engine.run(bare(fan({"long": long, "short": step("x", more)})), 0).output == {"long": 4, "short": 1}


def test_fan_outs_stand_three_deep_in_each_other(engine):
    """SYS-13: 27 leaves; each join is its own chord's."""

    def nest(depth):
        body = nest(depth - 1) if depth > 1 else step("write", seen)
        return Step.parallel(f"fan{depth}", dict.fromkeys("abc", body))

    result = engine.run(of(nest(3), step("after")), 1)
    assert result.output["b"]["c"]["a"] == 1
    assert (wrote(result).count, len(wrote(result).seen)) == (27, 27)
    assert set(scopes(engine, result).values()) == {"succeeded"}
    assert len([each for each in engine.history(result.run_id) if each.kind == "join"]) == 13


def test_branches_are_tried_again_with_waits(engine):
    """M-405 inside a branch; the sibling does not wait."""
    flaky = Flaky(1)
    result = engine.run(bare(fan({"a": step("shaky", flaky, config=TWICE), "b": step("x")})), "in")
    assert (result.output, flaky.calls) == ({"a": "in", "b": "in"}, 2)
    assert at(result, "fan", "a", "shaky").attempts == 2
    waits = [each for each in engine.story(result.run_id) if each.name == "flujo.retry"]
    assert [each.data["delay_seconds"] for each in waits] == [7.0]


class Tally(BaseModel):
    count: int = 1
    names: list[str] = ["start"]
    flags: set[str] = {"start"}
    table: dict[str, int] = {"start": 0}
    done: bool = False
    title: str = "start"


def tallies(letter, **changes):
    def agent(data, *, context):
        context.count += 1
        context.names = [*context.names, letter]
        context.flags = {*context.flags, letter}
        context.table = {**context.table, letter: 1}
        context.done = True
        for name, value in changes.items():
            setattr(context, name, value)
        return data

    return agent


def tallied(engine, strategy, **options):
    branches = {letter: step("write", tallies(letter)) for letter in ("b", "a")}
    result = engine.run(of(fan(branches, merge_strategy=strategy, **options), model=Tally), "in")
    return result, result.final_pipeline_context


def test_context_update_lets_all_branches_count(engine):
    """C-46, M-442: in declared order, which is not the alphabet's."""
    _, context = tallied(engine, "context_update")
    assert context == Tally(
        count=3,
        names=["start", "b", "a"],
        flags={"start", "a", "b"},
        table={"start": 0, "b": 1, "a": 1},
        done=True,
    )


@pytest.mark.parametrize(("strategy", "winner"), [("overwrite", "a"), ("keep_first", "b")])
def test_one_branch_wins_each_field(engine, strategy, winner):
    """Requirements §2.3: the last declared, or the first."""
    _, context = tallied(engine, strategy)
    assert context == Tally(
        count=2,
        names=["start", winner],
        flags={"start", winner},
        table={"start": 0, winner: 1},
        done=True,
    )


def test_no_merge_leaves_the_context_alone(engine):
    _, context = tallied(engine, "no_merge")
    assert context == Tally()


def test_error_on_conflict_refuses_any_field_that_two_branches_changed(engine):
    result, context = tallied(engine, "error_on_conflict")
    assert_attributed(engine, result, "join of 'fan'", "ContextMergeError", "branches 'b' and 'a' both changed")
    assert context == Tally()


def test_error_on_conflict_takes_what_is_disjoint_or_the_same(engine):
    branches = {"a": step("x", note(title="t", done=True)), "b": step("y", note(count=7, done=True))}
    result = engine.run(of(fan(branches, merge_strategy="error_on_conflict"), model=Tally), "in")
    assert (wrote(result).title, wrote(result).count, wrote(result).done) == ("t", 7, True)


@pytest.mark.parametrize("strategy", ["context_update", "error_on_conflict"])
def test_a_conflict_names_the_field_both_branches_and_the_way_out(engine, strategy):
    """C-46; what they wrote is not told."""
    branches = {"left": step("x", note(title="secret one")), "right": step("y", note(title="secret two"))}
    result = engine.run(of(fan(branches, merge_strategy=strategy)), "in")
    assert_attributed(engine, result, "fan", "ContextMergeError", "branches 'left' and 'right' both changed title")
    assert "field_mapping" in result.error.suggestion
    assert "merge_strategy" in result.error.suggestion
    assert "secret" not in f"{result.error} {at(result, 'fan').feedback}"
    assert wrote(result).title == ""


@pytest.mark.parametrize("strategy", ["context_update", "error_on_conflict", "overwrite", "keep_first"])
def test_only_mapped_fields_of_a_branch_are_merged(engine, strategy):
    """Requirements §2.3 `field_mapping`: a branch that is not named may change any."""
    branches = {
        "a": step("x", note(title="from a", count=5)),
        "b": step("y", note(title="from b", seen=["b"])),
        "c": step("z", note(items=[1])),
    }
    made = fan(branches, merge_strategy=strategy, field_mapping={"a": ["title"], "b": ["seen"]})
    context = wrote(engine.run(of(made), "in"))
    assert (context.title, context.count, context.seen, context.items) == ("from a", 0, ["b"], [1])


def test_branches_may_be_given_some_fields_alone(engine):
    """Requirements §2.3 `context_include_keys`: defaults for the rest, and what was left out is not lost."""

    def tells(data, *, context):
        context.seen = [*context.seen, context.title]
        return (context.title, context.count)

    result = engine.run(
        of(fan({"a": step("x", tells)}, context_include_keys=["count", "seen"])), context={"title": "t", "count": 4}
    )
    assert result.output == {"a": ("", 4)}
    assert (wrote(result).title, wrote(result).count, wrote(result).seen) == ("t", 4, [""])


class Strict(BaseModel):
    must: str
    count: int = 0


def test_a_field_that_branches_cannot_do_without_is_named(engine):
    result = engine.run(of(fan(context_include_keys=["count"]), model=Strict), context={"must": "be"})
    assert_attributed(engine, result, "snapshot of 'fan'", "ContextMergeError", "leave out must, for which Strict has")


class ByName(BaseModel):
    left: str = ""
    right: str = ""


def test_a_field_that_is_called_like_a_branch_receives_its_output(engine):
    """Requirements §2.3 `ignore_branch_names`; a branch that wrote the field itself has the last word."""
    branches = {"left": step("x"), "right": step("y", note(right="own"))}
    assert wrote(engine.run(of(fan(branches), model=ByName), "in")) == ByName(left="in", right="own")
    told = engine.run(of(fan(branches, ignore_branch_names=True), model=ByName), "in")
    assert wrote(told) == ByName(right="own")


def test_an_output_that_does_not_fit_its_field_is_refused_without_telling_it(engine):
    result = engine.run(of(fan({"left": step("x")}), model=ByName), 4711)
    assert_attributed(engine, result, "fan", "ContextMergeError", "does not fit ByName: left")
    assert "4711" not in result.error.message
    assert "branches 'left' go to the fields of these names" in result.error.suggestion
    assert "ignore_branch_names=True" in result.error.suggestion


class Bounded(BaseModel):
    count: int = Field(default=0, le=1)


def test_a_context_that_no_longer_fits_its_model_is_refused(engine):
    """The model is asked once, about what all branches did together."""
    result = engine.run(of(fan({n: step("x", note(count=1)) for n in "ab"}), model=Bounded), "in")
    assert_attributed(engine, result, "fan", "ContextMergeError", "does not fit Bounded: count")


def by_hand(context, branches):
    return context.model_copy(update={"title": "+".join(f"{name}:{each.title}" for name, each in branches.items())})


def in_place(context, branches):
    context.title = "+".join(branches)


async def slowly(context, branches):
    return by_hand(context, branches)


@pytest.mark.parametrize(("merge", "title"), [(by_hand, "b:B+a:A"), (in_place, "b+a"), (slowly, "b:B+a:A")])
def test_a_function_may_merge(engine, merge, title):
    """Requirements §2.3: it gives a context, or changes the one it is given."""
    branches = {"b": step("x", note(title="B")), "a": step("y", note(title="A"))}
    result = engine.run(of(fan(branches, merge_strategy=merge)), "in")
    assert (wrote(result).title, type(wrote(result))) == (title, Notes)
    assert wrote(result).step_outputs["fan"] == {"b": "in", "a": "in"}


def test_a_merge_function_sees_only_branches_that_succeeded(engine):
    made = fan({"a": step("x"), "b": step("no", fails)}, merge_strategy=in_place, on_branch_failure="ignore")
    assert wrote(engine.run(of(made), "in")).title == "a"


@pytest.mark.parametrize(
    ("merge", "type_name", "said"),
    [
        (raises, "KeyError", "a bug"),
        (
            lambda context, branches: "nonsense",
            "ContextMergeError",
            "the merge function must return a context or None, got a str",
        ),
    ],
)
def test_a_merge_function_that_goes_wrong_fails_the_fan_out(engine, merge, type_name, said):
    """U-34: with its reason, which a log line alone would lose."""
    result = engine.run(of(fan(merge_strategy=merge)), "in", context={"title": "before"})
    assert_attributed(engine, result, "join of 'fan'", type_name, said)
    assert wrote(result).title == "before"


async def count(outputs):
    return len(outputs)


@pytest.mark.parametrize(
    ("word", "given", "made"),
    [
        ("keys", [1, 2], ["0", "1"]),
        ("values", [1, 2], [1, 2]),
        ("union", [{"a": 1, "b": 1}, {"b": 2}], {"a": 1, "b": 2}),
        ("concat", ["x", "y"], "xy"),
        ("concat", [[1], [2, 3]], [1, 2, 3]),
        ("concat", [[1], 2], [1, 2]),
        ("first", [1, 2], 1),
        ("last", [1, 2], 2),
        ("first", [], None),
        ("last", [], None),
        ("keys", [], []),
        ("union", [], {}),
        (len, [1, 2], 2),
        (count, [1, 2], 2),
    ],
)
def test_outputs_are_reduced(engine, word, given, made):
    """Requirements §2.3 `reduce`: by a word or a function."""
    branches = [step("give", lambda _, value=value: value) for value in given]
    result = engine.run(bare(fan(branches, reduce=word)), "in")
    assert (result.output, result.success) == (made, True)


@pytest.mark.parametrize(
    ("reduce", "type_name", "said"),
    [(raises, "KeyError", "a bug"), ("union", "PipelineError", "reduce 'union' needs mappings; branch 'a'")],
)
def test_a_reduction_that_goes_wrong_fails_the_fan_out(engine, reduce, type_name, said):
    """U-34: the same for reducers."""
    assert_attributed(engine, engine.run(bare(fan(reduce=reduce)), "in"), "join of 'fan'", type_name, said)


def test_a_failing_branch_fails_the_fan_out(engine):
    """M-443: its own words are told, its siblings are closed, nothing of them is merged."""
    branches = {"a": step("no", fails), "b": Pipeline([step("y", note(title="b")), step("z")])}
    result = engine.run(of(fan(branches), step("after")), "in")
    assert_attributed(engine, result, "branch 'a' failed", "NonRetryableError", "no in")
    assert scopes(engine, result) == {"": "failed", "fan": "failed", "fan/a": "failed", "fan/b": "cancelled"}
    assert [each.success for each in at(result, "fan").step_history] == [False, False]
    assert wrote(result).title == ""


def test_siblings_that_wait_for_a_lane_are_closed_too(engine):
    branches = {name: step("no", fails) for name in "abcd"}
    result = engine.run(bare(fan(branches, max_concurrency=2)), "in")
    assert result.run_status == "failed"
    assert "open" not in scopes(engine, result).values()
    assert [scopes(engine, result)[f"fan/{name}"] for name in "cd"] == ["cancelled", "cancelled"]


def test_a_failed_branch_may_be_ignored(engine):
    """M-443, M-444: it stands among the outputs as the outcome of it, and merges nothing."""

    def writes_and_fails(data, *, context):
        context.title = "never"
        raise NonRetryableError("no")

    branches = {"a": step("no", writes_and_fails), "b": step("y", note(count=1))}
    result = engine.run(of(fan(branches, on_branch_failure="ignore"), step("after")), "in")
    assert result.success
    assert (result.output["b"], result.output["a"].success, result.output["a"].name) == ("in", False, "a")
    assert "NonRetryableError: no" in result.output["a"].feedback
    assert at(result, "fan").feedback == "1 failure ignored"
    assert (wrote(result).title, wrote(result).count) == ("", 1)


def test_at_least_one_branch_must_succeed(engine):
    """M-443."""
    branches = {"a": step("no", fails), "b": step("never", fails)}
    result = engine.run(bare(fan(branches, on_branch_failure="ignore")), "in")
    assert_attributed(engine, result, "branch 'a' failed", "NonRetryableError", "no in")


@pytest.mark.parametrize("strategy", ["propagate", "ignore"])
def test_an_abort_inside_a_branch_ends_the_run(engine, strategy):
    """C-20, C-23: no one swallows control flow; siblings are closed."""

    def aborts(data):
        raise PipelineAbortSignal("enough")

    branches = {"a": step("stop", aborts), "b": Pipeline([step("x"), step("y")])}
    inner = Step.parallel("inner", branches, on_branch_failure=strategy)
    result = engine.run(bare(Step.parallel("outer", {"in": inner, "z": step("z")}, on_branch_failure="ignore")), "in")
    assert (result.run_status, result.error.code) == ("failed", "PIPELINE_ABORT")
    assert "open" not in scopes(engine, result).values()
    assert scopes(engine, result)["outer/in/inner/b"] == "cancelled"
    with pytest.raises(PipelineAbortSignal, match="enough"):
        result.raise_for_status()


def test_a_failure_three_deep_tells_the_way(engine):
    """M-441: branch by branch, down to the agent's own words."""
    made = step("no", fails)
    for depth in (1, 2, 3):
        made = Step.parallel(f"fan{depth}", {f"b{depth}": made, "z": step("z")})
    result = engine.run(bare(made), "in")
    assert at(result, "fan3").feedback == (
        "branch 'b3' failed: branch 'b2' failed: branch 'b1' failed: Agent execution failed with NonRetryableError: no in"
    )
    run = engine.stores.reads.read_run(result.run_id)
    assert run.failed_key == f"{run.id}:fan3/b3/fan2/b2/fan1/b1:no:1"


def pays_and_fails(data):
    return AgentAnswer("no", SPENT)


def test_only_successful_branches_count_in_the_fan_outs_figures(engine):
    """C-11, M-432, U-14, M-434: failed branches are reported next to the others, and the run's totals count each branch once."""
    failing = Pipeline([step("paid", paid), step("no", fails)])
    inner = Step.parallel("inner", {"c": step("paid", paid), "d": step("paid", paid)})
    branches = {"a": step("paid", paid), "b": failing, "deep": inner}
    result = engine.run(bare(fan(branches, on_branch_failure="ignore")), "in")
    found = at(result, "fan")
    assert (found.cost_usd, found.token_counts) == (0.75, 45)
    assert (found.metadata_["failed_branch_cost_usd"], found.metadata_["failed_branch_tokens"]) == (0.25, 15)
    assert (result.total_cost_usd, result.total_tokens) == (1.0, 60)


@pytest.mark.parametrize("most", [1, 2, 3, 20])
def test_no_more_branches_are_at_work_than_lanes(engine, most):
    """SYS-13, U-13 `max_concurrency`; branches of several steps keep their lane from the first to the last."""
    body = Pipeline([step("x", more), step("y", more)])
    result = engine.run(bare(fan({f"b{n}": body for n in range(10)}, max_concurrency=most)), 0)
    assert result.output == {f"b{n}": 2 for n in range(10)}
    assert engine.most["fan"] == min(most, 10)
    taken = {each.lanes["fan"] for each in engine.stores.reads.read_scopes(result.run_id) if each.lanes}
    assert taken == set(range(min(most, 10)))


def test_lanes_are_counted_for_each_fan_out_alone(engine):
    inner = Step.parallel("inner", {f"b{n}": step("x", more) for n in range(4)}, max_concurrency=2)
    result = engine.run(bare(fan({"a": inner, "b": inner}, max_concurrency=1)), 0)
    assert result.success
    assert (engine.most["fan/a/inner"], engine.most["fan/b/inner"]) == (2, 2)


LARGE = 1_000_000
BRANCHES = 100


def test_branches_share_one_snapshot(engine):
    """C-15, U-41, issue 3: a 1 MB context is stored once, messages stay small, and no one holds one for each branch."""
    text = Random(1).randbytes(LARGE // 2).hex()
    made = of(fan({f"b{n}": step("x") for n in range(BRANCHES)}, reduce=len), model=ByName)
    tracemalloc.start()
    try:
        result = engine.run(made, "in", context={"left": text})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    stored = [blob for blob in engine.stores.tables.blobs.values() if blob.size > LARGE / 10]
    print(f"peak {peak / 1e6:.0f} MB for {BRANCHES} branches, each with {LARGE / 1e6:.0f} MB of context")
    assert (result.output, wrote(result).left) == (BRANCHES, text)
    assert len(stored) == 1
    assert max(engine.sizes.values()) < 3000
    assert peak < 50 * LARGE
