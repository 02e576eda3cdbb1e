"""Rules for every kind of container: results, contexts, costs, failures (M-280, M-283, M-400, U-04)."""

from __future__ import annotations

import pytest
from container_parts import SPENT, TWICE, Flaky, Notes, WatchedEngine, assert_attributed, at, fails, scopes, step
from pydantic import BaseModel

from flujo_client.contract.results import RefinementCheck, StepResult
from flujo_client.errors import PipelineAbortSignal
from flujo_client.pipeline.machine import StateMachineStep
from flujo_client.pipeline.nested import ImportStep
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step, StepConfig
from flujo_worker.agents.answer import AgentAnswer

pytestmark = pytest.mark.engine(kind=WatchedEngine)


class Work(Notes):
    """The context of all of them, so that any can map over its items."""

    items: tuple[str, ...] = ("in",)


def of(*steps, model=Work):
    return Pipeline(list(steps), context_model=model)


CONTAINERS = {
    "loop": lambda body: Step.loop_until("box", body, lambda *_: True),
    "loop to its maximum": lambda body: Step.loop_until("box", body, lambda *_: False, max_loops=1),
    "refinement": lambda body: Step.refine_until(
        "box", body, step("judge", lambda _: RefinementCheck(is_complete=True))
    ),
    "map": lambda body: Step.map_over("box", body, iterable_input="items"),
    "parallel map": lambda body: Step.map_over("box", body, iterable_input="items", parallel=True),
    "parallel": lambda body: Step.parallel("box", {"only": body}, ignore_branch_names=True),
    "router": lambda body: Step.dynamic_parallel_branch("box", lambda _: ["only"], {"only": body, "other": step("o")}),
    "conditional": lambda body: Step.branch_on("box", lambda *_: "only", {"only": body}),
    "nested": lambda body: ImportStep("box", pipeline=body, inherit_context=True),
    "nested with a context of its own": lambda body: ImportStep("box", pipeline=of(*body.steps)),
    "with a fallback": lambda body: ImportStep("box", pipeline=body, inherit_context=True).fallback(step("o", fails)),
    "machine": lambda body: StateMachineStep(
        "box", states={"a": body}, start_state="a", end_states=["a"], transitions=[]
    ),
}
REPEATING = {"loop", "loop to its maximum", "refinement", "map", "parallel map", "machine"}
ALL = pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS.keys())


def work(data, *, context):
    context.title, context.count = f"wrote {data}", context.count + 1
    return AgentAnswer(f"did {data}", SPENT)


def body(agent=work, **rest):
    return Pipeline([step("first"), step("work", agent, **rest)])


def every(result):
    yield result
    for each in result.step_history:
        yield from every(each)


@ALL
def test_its_result_is_filled_by_the_same_rules(engine, make):
    """M-283."""
    result = engine.run(of(step("before"), make(body()), step("after", lambda data: data)), "in")
    found = at(result, "box")
    assert result.success
    assert [each.name for each in result.step_history] == ["before", "box", "after"]
    assert (found.name, found.success, found.attempts) == ("box", True, 1)
    assert found.output == result.output == result.final_pipeline_context.step_outputs["box"]
    assert (result.final_pipeline_context.title, result.final_pipeline_context.count) == ("wrote in", 1)
    assert "did in" in str(found.output)
    assert found.feedback is None or "fail" not in found.feedback
    assert all(isinstance(key, str) for key in found.metadata_)


@ALL
def test_its_children_stand_in_its_history(engine, make):
    """M-283, M-444: one for each scope beneath it, with the steps that ran there; the same fields all the way down."""
    result = engine.run(of(make(body())), "in")
    [child, *others] = at(result, "box").step_history
    assert [each.name for each in child.step_history][-1] in ("work", "critic")
    assert others == []
    for each in every(at(result, "box")):
        assert isinstance(each, StepResult)
        assert (each.success, each.attempts) == (True, 1)


@ALL
def test_its_time_is_that_of_what_ran_in_it(engine, make):
    """M-283: three seconds pass in the step inside, by the store's clock; each scope around it took them, and its agent's time if it has one."""

    def slow(data, *, context):
        engine.now += 3.0
        return work(data, context=context)

    result = engine.run(of(make(body(slow))), "in")
    around = [
        each
        for each in every(at(result, "box"))
        if each.step_history and any(inner.name == "work" for inner in every(each))
    ]
    assert len(around) >= 2
    assert all(each.latency_s >= 3.0 for each in around)


@ALL
def test_its_figures_are_those_of_what_ran_in_it(engine, make):
    """M-283, M-432: nothing twice, nothing left out."""
    result = engine.run(of(make(body())), "in")
    assert (at(result, "box").cost_usd, at(result, "box").token_counts) == (0.25, 15)
    assert (result.total_cost_usd, result.total_tokens) == (0.25, 15)


@ALL
def test_what_was_written_inside_is_seen_after_it(engine, make):
    """M-280, M-284."""
    after = step("after", lambda data, context: (context.title, context.count))
    result = engine.run(of(make(body()), after), "in")
    assert result.output == ("wrote in", 1)


@ALL
def test_its_result_has_the_context_that_it_left(engine, make):
    """M-283, M-444, M-460: that the next step began with, whatever that writes; a plain step has none of its own."""

    def overwrite(data, *, context):
        context.title = "written later"

    result = engine.run(of(step("before"), make(body()), step("after", overwrite)), "in")
    before, box, after = result.step_history
    assert type(box.branch_context) is Work
    assert (box.branch_context.title, box.branch_context.count) == ("wrote in", 1)
    assert "after" not in box.branch_context.step_outputs
    assert box.branch_context.step_outputs["box"] == box.output
    assert (before.branch_context, after.branch_context) == (None, None)


@pytest.mark.parametrize("kind", CONTAINERS)
def test_what_is_in_it_has_its_context_too_where_it_stands_once(engine, kind):
    """M-283: of iterations, items and turns none is kept, for there may be any number."""
    inner = Step.parallel("inner", {"only": body()}, ignore_branch_names=True)
    result = engine.run(of(CONTAINERS[kind](Pipeline([inner]))), "in")
    [child] = at(result, "box").step_history
    counts = [each.branch_context and each.branch_context.count for each in (child, at(child, "inner"))]
    assert counts == ([None, None] if kind in REPEATING else [1, 1])


@ALL
def test_what_failed_has_no_context(engine, make):
    result = engine.run(of(make(body(fails))), "in")
    assert {each.branch_context for each in every(at(result, "box"))} == {None}


def test_a_branch_has_its_own_context_before_the_merge(engine):
    """M-440, M-444."""

    def writer(name):
        def write(data, *, context):
            context.title, context.count = name, context.count + 1

        return step("write", write)

    fan = Step.parallel("fan", {"a": writer("a"), "b": writer("b")}, merge_strategy="overwrite")
    found = at(engine.run(of(fan), "in"), "fan")
    assert [(each.name, each.branch_context.title, each.branch_context.count) for each in found.step_history] == [
        ("a", "a", 1),
        ("b", "b", 1),
    ]
    assert found.branch_context.title == "b"


@ALL
def test_it_runs_where_it_is_the_first_the_last_and_the_only_one(engine, make):
    for steps in ([make(body())], [make(body()), step("after")], [step("before"), make(body())]):
        result = engine.run(of(*steps), "in")
        assert result.success
        assert set(scopes(engine, result).values()) == {"succeeded"}


class Plain(BaseModel):
    title: str = ""
    count: int = 0
    items: tuple[str, ...] = ("in",)


@ALL
def test_it_runs_on_a_context_that_keeps_no_outputs(engine, make):
    """Any pydantic model will do as a context."""
    assert engine.run(of(make(body()), model=Plain), "in").final_pipeline_context.count == 1


@ALL
def test_a_failure_in_it_is_told_up_to_the_run(engine, make):
    """M-283, M-441: class and words are the step's own at every floor; nothing comes after, nothing stays open."""
    result = engine.run(of(make(body(fails)), step("after")), "in")
    found = at(result, "box")
    assert_attributed(engine, result, "NonRetryableError", "NonRetryableError", "no in")
    assert [each.name for each in result.step_history] == ["box"]
    assert (found.success, found.output) == (False, None)
    failed = [each for each in every(found) if not each.success]
    assert "work" in {each.name for each in failed}
    assert all("NonRetryableError: no in" in each.feedback for each in failed)


def writes_and_fails(data, *, context):
    context.title = "never merged"
    raise ValueError("broken")


@ALL
def test_what_failed_in_it_was_not_merged(engine, make):
    """Law 4, C-13: nothing of it, nor of the steps before it in the same body."""
    made = Pipeline([step("work", work), step("broken", writes_and_fails)])
    result = engine.run(of(make(made)), "in")
    context = result.final_pipeline_context
    assert (context.title, context.count, context.items) == ("", 0, ("in",))


@ALL
def test_what_a_failed_body_spent_is_in_the_totals(engine, make):
    """U-14, C-11: and told in the container's result."""
    result = engine.run(of(make(Pipeline([step("work", work), step("no", fails)]))), "in")
    found = at(result, "box")
    assert (result.total_cost_usd, result.total_tokens) == (0.25, 15)
    assert found.cost_usd + found.metadata_.get("failed_branch_cost_usd", 0.0) == 0.25


@ALL
def test_retries_inside_it_are_the_steps_own(engine, make):
    """M-405: with waits; one attempt more, no second child."""
    flaky = Flaky(1)
    result = engine.run(of(make(body(flaky, config=TWICE))), "in")
    assert (result.run_status, flaky.calls) == ("succeeded", 2)
    assert [each.attempts for each in every(at(result, "box")) if each.name == "work"] == [2]


@ALL
def test_control_flow_passes_through_it(engine, make):
    """C-20, C-23: without a word in front of it."""

    def aborts(data):
        raise PipelineAbortSignal("enough")

    result = engine.run(of(make(body(aborts, config=StepConfig(max_retries=3)))), "in")
    assert (result.error.code, result.error.message) == ("PIPELINE_ABORT", "enough")
    assert len({each.feedback for each in every(at(result, "box")) if not each.success}) == 1
    assert "open" not in scopes(engine, result).values()


@ALL
@pytest.mark.parametrize("outer", CONTAINERS.values(), ids=CONTAINERS.keys())
def test_it_is_in_any_other(engine, make, outer):
    """M-285: the same writes, the same spend, two floors down."""
    result = engine.run(of(outer(Pipeline([make(body())]))), "in")
    assert (result.run_status, result.total_cost_usd) == ("succeeded", 0.25)
    assert result.final_pipeline_context.count == 1
    assert set(scopes(engine, result).values()) == {"succeeded"}


@ALL
@pytest.mark.parametrize("outer", CONTAINERS.values(), ids=CONTAINERS.keys())
def test_its_failure_climbs_out_of_any_other(engine, make, outer):
    """M-441."""
    result = engine.run(of(outer(Pipeline([make(body(fails))])), step("after")), "in")
    assert_attributed(engine, result, "NonRetryableError", "NonRetryableError", "no in")
