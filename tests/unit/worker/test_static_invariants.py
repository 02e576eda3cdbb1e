"""Static invariants of steps, pipelines and blueprints: what must be true after every step (requirements §2.3 and §2.6)."""

from typing import Any

import pytest
from container_parts import ONCE, Notes, echo, note, of, step

from flujo_client import Pipeline, Step
from flujo_client.errors import BlueprintError, PipelineError
from flujo_client.pipeline.compile import compile_plan

POSITIVE = "context.count >= 0"


def few(output: Any, *, context: Notes) -> bool:
    return len(context.seen) < 3


async def short(output: Any) -> bool:
    return len(str(output)) < 10


BOUNDS = [POSITIVE, f"{__name__}:few", short]


def guarded(*steps: Step, **rest: Any) -> Pipeline:
    return Pipeline(list(steps), context_model=Notes, static_invariants=BOUNDS, **rest)


def test_what_holds_changes_nothing(engine):
    """Requirements §2.3: expressions, references and functions, sync or async, of the output and the context."""
    result = engine.run(guarded(step("a", note(count=1)), step("b", note(count=2))), "x")
    assert (result.success, result.final_pipeline_context.count) == (True, 2)


@pytest.mark.parametrize(
    ("agent", "broken"),
    [
        (note(count=-1), "'context.count >= 0' does not hold"),
        (note(seen=[1, 2, 3]), f"'{__name__}:few' does not hold"),
        (lambda _: "much too long", "'short' does not hold"),
    ],
)
def test_a_violation_ends_the_step_and_nothing_of_it_is_kept(engine, agent, broken):
    """Requirements §2.3: the step is not tried again, the invariant is named, and the context is as it was."""
    result = engine.run(guarded(step("a", note(count=1)), step("b", agent), step("c", echo)), "x")
    failed = result.step_history[-1]
    assert (result.run_status, failed.name, failed.attempts) == ("failed", "b", 1)
    assert broken in failed.feedback
    assert (result.final_pipeline_context.count, result.final_pipeline_context.seen) == (1, [])


def test_all_that_do_not_hold_are_named(engine):
    result = engine.run(guarded(step("a", note(count=-1, seen=[1, 2, 3]))), "x")
    assert all(each in result.step_history[-1].feedback for each in ("context.count", "few"))


def test_the_context_is_judged_with_the_output_in_it(engine):
    """Requirements §2.3: after `sink_to` and `updates_context`, and whatever `strict_validation` says."""
    work = step("a", lambda _: -5, sink_to="count", static_invariants=[POSITIVE], strict_validation=False)
    result = engine.run(of(work), "x", context={})
    assert (result.success, result.final_pipeline_context.count) == (False, 0)


def test_a_steps_own_invariants_are_for_that_step(engine):
    steps = step("a", echo, static_invariants=["output == 'x'"]), step("b", lambda _: "y", config=ONCE)
    assert engine.run(of(*steps), "x", context={}).output == "y"
    assert engine.run(of(*steps), "z", context={}).success is False


def test_an_invariant_that_cannot_be_judged_is_broken(engine):
    """A name that does not exist is an error, not a success."""
    result = engine.run(of(step("a", echo, static_invariants=["context.no_such_field > 1"])), "x", context={})
    assert "cannot be judged" in result.step_history[-1].feedback


INSIDE = {
    "loop": lambda body: Step.loop_until("l", body, lambda *_: True, max_loops=1),
    "parallel": lambda body: Step.parallel("p", {"a": body}),
    "nested": lambda body: of(body).as_step("n"),
    "child run": lambda body: of(body).as_step("n", own_run=True),
    "fallback": lambda body: step("f", lambda _: 1 / 0, config=ONCE).fallback(body),
    "cached": Step.cached,
}


@pytest.mark.parametrize("place", INSIDE)
def test_a_pipelines_invariants_reach_every_step_in_it(engine, place):
    """Requirements §2.3: at any depth, as long as the context is the same."""
    result = engine.run(guarded(INSIDE[place](step("deep", note(count=-1)))), "x")
    assert result.run_status == "failed"
    assert "context.count >= 0" in str(result.step_history[-1].feedback)


def test_a_nested_context_has_rules_of_its_own(engine):
    """An import with its own context is judged by its own pipeline's invariants alone."""
    inner = of(step("deep", note(count=-1)))
    assert engine.run(guarded(inner.as_step("n", inherit_context=False, outputs=[])), "x").success
    guarded_inner = guarded(step("deep", note(count=-1)))
    result = engine.run(of(guarded_inner.as_step("n", inherit_context=False, outputs=[])), "x", context={})
    assert result.success is False


def test_composing_keeps_the_invariants_of_both():
    first, second = guarded(step("a", echo)), Pipeline([step("b", echo)], static_invariants=["output"])
    assert (first >> second).static_invariants == (*BOUNDS, "output")
    assert (first >> step("c", echo)).static_invariants == BOUNDS


def test_they_are_part_of_the_fingerprint():
    """A run that began under other rules is under other code."""
    plain, ruled = of(step("a", echo)), guarded(step("a", echo))
    own = of(step("a", echo, static_invariants=[POSITIVE]))
    assert len({compile_plan(each).fingerprint for each in (plain, ruled, own)}) == 3
    assert "invariants" not in compile_plan(plain).to_tree()


@pytest.mark.parametrize(
    ("invariant", "finding"),
    [
        ("context.count >", "static_invariants[0]: "),
        ("amount > 3", "static_invariants[0]: "),
        ("no.such:thing", "static_invariants[0]: "),
        (3, "static_invariants[0]: it must be an expression or a function of the output and the context, got a int"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_a_run(engine, invariant, finding):
    """Of a step and of a pipeline, with the place."""
    for pipeline in (
        of(step("a", echo, static_invariants=[invariant])),
        Pipeline([step("a", echo)], static_invariants=[invariant]),
    ):
        with pytest.raises(PipelineError) as refused:
            engine.enqueue(pipeline, "x", context={})
        assert finding in str(refused.value)


BLUEPRINT = f"""
name: ruled
static_invariants:
  - context.call_count >= 0
  - {__name__}:short
steps:
  - name: a
    uses: container_parts:echo
    static_invariants: ["output != 'no'"]
"""


def test_a_blueprint_has_them(engine):
    """Requirements §2.6: of the document; and of a step. They come back when it is written."""
    pipeline = Pipeline.from_yaml_text(BLUEPRINT, allowed=["*"])
    assert engine.run(pipeline, "yes").success
    assert "'short' does not hold" in engine.run(pipeline, "much too long").step_history[-1].feedback.replace(
        f"{__name__}:", ""
    )
    assert "output != 'no'" in engine.run(pipeline, "no").step_history[-1].feedback
    again = Pipeline.from_yaml_text(pipeline.to_yaml(), allowed=["*"])
    assert compile_plan(again).to_tree().get("invariants") == compile_plan(pipeline).to_tree()["invariants"]
    assert again.steps[0].static_invariants == pipeline.steps[0].static_invariants


def test_a_blueprints_broken_invariant_is_found_with_its_line():
    """Requirements §2.6."""
    with pytest.raises(BlueprintError) as refused:
        Pipeline.from_yaml_text(BLUEPRINT.replace("call_count >= 0", "call_count >="), allowed=["*"])
    assert "line 4" in str(refused.value) or ":4" in str(refused.value)
