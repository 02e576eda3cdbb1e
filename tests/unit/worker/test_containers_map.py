"""Maps, through the engine in one process: one after the other and side by side."""

import pytest
from container_parts import Flaky, WatchedEngine, assert_attributed, at, fails, more, of, scopes, seen, step

from flujo_client.errors import NonRetryableError
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step, StepConfig

pytestmark = pytest.mark.engine(kind=WatchedEngine)

BOTH = pytest.mark.parametrize("options", [{}, {"parallel": True}, {"max_concurrency": 2}], ids=str)


def each(body=None, items="items", **options):
    return Step.map_over("each", body or step("more", more), iterable_input=items, **options)


@BOTH
def test_results_keep_the_order_of_the_items(engine, options):
    """SYS-15, requirements §2.3; the items' scopes are numbered from 1."""
    result = engine.run(of(each(**options)), context={"items": [30, 10, 20]})
    assert result.output == [31, 11, 21]
    assert [each.name for each in at(result, "each").step_history] == ["each#1", "each#2", "each#3"]
    assert set(scopes(engine, result).values()) == {"succeeded"}


@BOTH
@pytest.mark.parametrize("items", [[], (), set()])
def test_no_items_are_a_success(engine, options, items):
    result = engine.run(of(each(**options), step("after")), context={"items": items})
    assert (result.run_status, result.output) == ("succeeded", [])
    assert at(result, "each").step_history == []


@BOTH
def test_one_item_is_a_list_of_one(engine, options):
    assert engine.run(of(each(**options)), context={"items": [1]}).output == [2]


@BOTH
@pytest.mark.parametrize(
    ("path", "items", "said"),
    [
        ("items", "text", "the context's 'items' is a str, not an iterable of items"),
        ("items", b"bytes", "the context's 'items' is a bytes, not an iterable"),
        ("items", {"a": 1}, "the context's 'items' is a dict, not an iterable"),
        ("items", 5, "the context's 'items' is a int, not an iterable"),
        ("items", None, "the context's 'items' is a NoneType, not an iterable"),
        ("scratchpad.list", [], "'scratchpad.list' does not exist in Notes: there is no 'list'"),
    ],
)
def test_what_cannot_be_mapped_over_fails_the_map(engine, options, path, items, said):
    """Requirements §2.3: the field and what stands there are named; the map is in the history."""
    result = engine.run(of(each(items=path, **options), step("after")), context={"items": items})
    assert_attributed(engine, result, "items of 'each'", "PipelineError", said)
    assert [each.name for each in result.step_history] == ["each"]


@BOTH
def test_items_may_stand_deep_in_the_context(engine, options):
    result = engine.run(of(each(items="scratchpad.list.of", **options)), context={"scratchpad": {"list": {"of": [1]}}})
    assert result.output == [2]


def third(data):
    if data == 3:
        raise NonRetryableError("not the third")
    return data


@BOTH
def test_a_failing_item_fails_the_map(engine, options):
    """M-443: the feedback tells which item; nothing of the others is left open."""
    result = engine.run(of(each(step("third", third), **options)), context={"items": [1, 2, 3, 4, 5]})
    assert_attributed(engine, result, "3", "NonRetryableError", "not the third")
    assert scopes(engine, result)["each#3"] == "failed"


def test_items_that_were_not_begun_are_closed(engine):
    """One after the other: the fourth and the fifth never run."""
    result = engine.run(of(each(step("third", third))), context={"items": [1, 2, 3, 4, 5]})
    ends = [scopes(engine, result)[f"each#{place}"] for place in range(1, 6)]
    assert ends == ["succeeded", "succeeded", "failed", "cancelled", "cancelled"]
    assert "item 3 failed at step 'third'" in at(result, "each").feedback
    assert len([each for each in engine.history(result.run_id) if each.kind == "step"]) == 3


def test_a_failing_item_may_be_ignored(engine):
    """M-444: it is represented, not dropped."""
    result = engine.run(
        of(each(step("third", third), parallel=True, on_branch_failure="ignore")), context={"items": [1, 3, 5]}
    )
    assert result.success
    assert [result.output[0], result.output[2]] == [1, 5]
    assert (result.output[1].name, result.output[1].success) == ("each#2", False)


def test_one_after_the_other_shares_one_context(engine):
    """M-412: each item begins with what the ones before it wrote."""
    result = engine.run(of(each(step("write", seen))), context={"items": ["b", "a"]})
    assert (result.final_pipeline_context.seen, result.final_pipeline_context.count) == (["b", "a"], 2)


def test_side_by_side_what_items_wrote_is_merged_in_their_order(engine):
    """C-46, M-442."""
    result = engine.run(of(each(step("write", seen), parallel=True)), context={"items": ["b", "a", "c"]})
    assert (result.final_pipeline_context.seen, result.final_pipeline_context.count) == (["b", "a", "c"], 3)


def test_what_items_wrote_is_kept_when_a_later_one_fails(engine):
    """C-13, one after the other."""
    body = Pipeline([step("third", third), step("write", seen)])
    result = engine.run(of(each(body)), context={"items": [1, 2, 3]})
    assert result.final_pipeline_context.seen == [1, 2]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_more_items_are_at_work_than_allowed(engine, most):
    """SYS-15: `max_concurrency` is lanes."""
    result = engine.run(of(each(max_concurrency=most)), context={"items": list(range(7))})
    assert result.output == list(range(1, 8))
    assert engine.most["each"] == most


def test_a_sequential_map_carries_no_items_in_its_messages(engine):
    """No message grows with the number of items."""
    few = engine.run(of(each(items="scratchpad.few")), context={"scratchpad": {"few": [1], "many": list(range(500))}})
    alone = engine.sizes["each#1"]
    many = engine.run(of(each(items="scratchpad.many")), context={"scratchpad": {"few": [1], "many": list(range(500))}})
    assert (few.success, many.success) == (True, True)
    assert engine.sizes["each#1"] <= alone + 8


@BOTH
def test_items_are_tried_again(engine, options):
    """M-405 inside a map."""
    flaky = Flaky(2)
    body = step("shaky", flaky, config=StepConfig(max_retries=2))
    result = engine.run(of(each(body, **options)), context={"items": ["x"]})
    assert (result.output, flaky.calls) == (["x"], 3)


@BOTH
def test_maps_stand_in_maps(engine, options):
    """M-285: the inner one over a list that the item's first step puts into the context."""

    def spread(data, *, context):
        context.items = [data, data * 10]
        return data

    inner = Step.map_over("inner", step("more", more), iterable_input="items", **options)
    merging = {"merge_strategy": "overwrite"} if options else {}
    made = each(Pipeline([step("spread", spread), inner]), **options, **merging)
    result = engine.run(of(made), context={"items": [1, 2]})
    assert result.output == [[2, 11], [3, 21]]


def test_all_items_failing_is_a_failure_even_when_ignored(engine):
    """M-443: at least one must succeed."""
    made = each(step("no", fails), parallel=True, on_branch_failure="ignore")
    result = engine.run(of(made), context={"items": [1, 2]})
    assert_attributed(engine, result, "each#1", "NonRetryableError", "no 1")


def counted(outputs, context, original_input):
    return {"outputs": outputs, "saw": list(context.seen), "given": original_input}


@BOTH
@pytest.mark.parametrize("items", [[], [1, 2]], ids=str)
def test_finalize_makes_the_output_of_all_outputs(engine, options, items):
    """§2.6: asked once, after the last item, also where there is none; with the map's own input and the context."""
    result = engine.run(of(each(finalize=counted, **options)), "in", context={"items": items})
    assert result.output == {"outputs": [item + 1 for item in items], "saw": [], "given": "in"}


@BOTH
def test_a_finalize_that_fails_fails_the_map(engine, options):
    def broken(outputs, context):
        raise ValueError("no")

    result = engine.run(of(each(finalize=broken, **options)), context={"items": [1]})
    assert result.run_status == "failed"
    assert "output of 'each' failed with ValueError: no" in at(result, "each").feedback
