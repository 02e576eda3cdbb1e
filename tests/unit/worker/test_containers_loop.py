"""Loops, through the engine in one process: exits, mappers, accumulation, failures, and what an iteration costs."""

import pytest
from container_parts import (
    TWICE,
    Flaky,
    Notes,
    Spy,
    WatchedEngine,
    assert_attributed,
    at,
    bare,
    fails,
    more,
    note,
    of,
    raises,
    scopes,
    seen,
    step,
)
from pydantic import BaseModel

from flujo_client import PluginOutcome
from flujo_client.errors import PipelineAbortSignal
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step

pytestmark = pytest.mark.engine(kind=WatchedEngine)


def reaches(number):
    return lambda output, _: output >= number


def loop(body=None, until=lambda *_: False, **options):
    return Step.loop_until("again", body or step("more", more), until, **options)


@pytest.mark.parametrize(
    ("until", "rounds", "reason"), [(1, 1, "condition"), (3, 3, "condition"), (99, 5, "max_loops")]
)
def test_a_loop_ends_by_its_condition_or_after_as_many_rounds_as_allowed(engine, until, rounds, reason):
    """M-446, M-447, C-12: at the first, at one in the middle, at the last; its attempts are its iterations."""
    result = engine.run(bare(loop(until=reaches(until))), 0)
    found = at(result, "again")
    assert (result.output, found.success, found.attempts) == (rounds, True, rounds)
    assert found.metadata_ == {"iterations": rounds, "exit_reason": reason}
    assert reason.split("_")[0] in found.feedback
    assert [each.name for each in found.step_history] == [f"again#{n}" for n in range(1, rounds + 1)]


def test_one_loop_is_enough(engine):
    """M-448: the maximum of one."""
    assert engine.run(bare(loop(max_loops=1)), 0).output == 1


def test_the_condition_sees_the_accumulated_context_and_the_output_of_the_same_iteration(engine):
    """M-448."""
    condition = Spy(lambda output, context: context.count >= 3)
    result = engine.run(of(loop(step("write", seen, sink_to="title"), condition)), "x")
    assert [(output, context.count) for output, context in condition.asked] == [("x", 1), ("x", 2), ("x", 3)]
    assert (result.final_pipeline_context.count, result.final_pipeline_context.title) == (3, "x")


def test_reaching_the_maximum_can_be_a_failure(engine):
    """C-12: the mapper is asked first even then, and what the iterations wrote is kept."""
    mapper = Spy(lambda output, context: output)
    result = engine.run(of(loop(step("write", seen), max_loops=2, fails_at_max=True, loop_output_mapper=mapper)), 1)
    assert_attributed(engine, result, "again", "ExecutionError", "reached max_loops (2) without meeting its condition")
    assert at(result, "again").metadata_ == {"iterations": 2, "exit_reason": "max_loops"}
    assert (len(mapper.asked), result.final_pipeline_context.count) == (1, 2)


def test_every_mapper_has_its_turn(engine):
    """M-446: the index is 1 for the second iteration."""
    first = Spy(lambda given, context: given * 10)
    between = Spy(lambda output, context, index: output + index)
    last = Spy(lambda output, context: f"ended with {output}")
    result = engine.run(
        of(
            loop(
                max_loops=3,
                initial_input_to_loop_body_mapper=first,
                iteration_input_mapper=between,
                loop_output_mapper=last,
            )
        ),
        1,
    )
    assert [given for given, _ in first.asked] == [1]
    assert [(output, index) for output, _, index in between.asked] == [(11, 1), (13, 2)]
    assert [output for output, _ in last.asked] == [16]
    assert result.output == "ended with 16"
    assert all(isinstance(each[1], Notes) for spy in (first, between, last) for each in spy.asked)


async def until_three(output, context):
    return output >= 3


async def tenfold(output, context):
    return output * 10


async def plus_index(output, context, index):
    return output + index - 1


def test_mappers_and_conditions_may_be_async(engine):
    made = loop(
        until=until_three,
        initial_input_to_loop_body_mapper=tenfold,
        iteration_input_mapper=plus_index,
        loop_output_mapper=tenfold,
    )
    assert engine.run(bare(made), 0).output == 40


def test_the_iteration_mapper_is_handed_the_loops_own_input(engine):
    """By its name alone: `original_input`."""

    def mapper(output, context, index, *, original_input):
        return [output, index, original_input]

    result = engine.run(bare(loop(step("same"), max_loops=3, iteration_input_mapper=mapper)), "in")
    assert result.output == [["in", 1, "in"], 2, "in"]


@pytest.mark.parametrize(("until", "rounds"), [(1, 1), (3, 3), (99, 5)])
def test_the_output_mapper_is_asked_once_on_every_exit(engine, until, rounds):
    """M-281: with the last output and the accumulated context."""
    spy = Spy(lambda output, context: (output, context.count))
    body = Pipeline([step("more", more), step("write", seen)])
    result = engine.run(of(loop(body, reaches(until), loop_output_mapper=spy)), 0)
    assert [(output, context.count) for output, context in spy.asked] == [(rounds, rounds)]
    assert result.output == (rounds, rounds)


def test_the_output_is_the_mappers_even_if_that_is_none(engine):
    """M-282."""
    result = engine.run(bare(loop(loop_output_mapper=lambda output, context: None), step("after")), 0)
    assert result.success
    assert (at(result, "again").output, result.output) == (None, None)


@pytest.mark.parametrize(
    ("options", "reason", "iterations"),
    [
        ({"until": raises}, "exit_condition_error", 1),
        ({"initial_input_to_loop_body_mapper": raises}, "initial_input_mapper_error", 0),
        ({"iteration_input_mapper": raises}, "iteration_input_mapper_error", 1),
        ({"loop_output_mapper": raises, "max_loops": 2}, "loop_output_mapper_error", 2),
    ],
)
def test_a_function_that_raises_fails_the_loop(engine, options, reason, iterations):
    """M-282: the feedback names the function and the loop's place, the metadata why it ended."""
    result = engine.run(of(loop(**options)), 0)
    role = reason.removesuffix("_error").removesuffix("_mapper").removeprefix("loop_")
    assert_attributed(engine, result, "again", "KeyError", "a bug")
    assert f"{role} of 'again' failed with KeyError" in at(result, "again").feedback
    assert at(result, "again").metadata_ == {"iterations": iterations, "exit_reason": reason}


def test_only_iterations_that_succeeded_are_accumulated(engine):
    """C-13, M-412: what the failed third one wrote is gone, what the two before it wrote stays."""

    def third_fails(data, *, context):
        if context.count == 3:
            raise ValueError("the third")
        return data

    body = Pipeline([step("write", seen), step("judge", third_fails)])
    result = engine.run(of(loop(body)), "x")
    assert_attributed(engine, result, "again", "ValueError", "the third")
    assert result.final_pipeline_context.count == 2
    assert at(result, "again").metadata_ == {"iterations": 2, "exit_reason": "body_step_error"}
    assert "Loop body failed in iteration 3 of 'again' at step 'judge'" in at(result, "again").feedback


class Never:
    def validate(self, data):
        return PluginOutcome(success=False, feedback="Plugin validation failed: too short")


def test_a_plugin_that_refuses_is_named_in_the_loops_feedback(engine):
    """M-289 (REQ-FAILURE-002): a phrase of the loop's and the plugin's own text, the step and the iteration."""
    result = engine.run(of(loop(step("draft", plugins=[Never()]))), "in")
    said = at(result, "again").feedback
    assert "Loop body failed" in said
    assert "iteration 1 of 'again' at step 'draft'" in said
    assert "Plugin validation failed: too short" in said
    assert result.error.category == "plugin"


def test_an_abort_passes_through(engine):
    """C-20, C-23: no words are put in front of it."""

    def aborts(data):
        raise PipelineAbortSignal("enough")

    result = engine.run(of(loop(step("stop", aborts))), "in")
    assert (result.error.code, result.error.message) == ("PIPELINE_ABORT", "enough")


BODIES = {
    "a loop": lambda: Step.loop_until("inner", step("more", more), reaches(2), max_loops=2),
    "a fan-out": lambda: Step.parallel("inner", {"a": step("more", more)}, reduce="first"),
    "a choice": lambda: Step.branch_on("inner", lambda *_: "a", {"a": step("more", more)}),
    "a pipeline": lambda: bare(step("more", more)).as_step("inner"),
    "a fan-out of nothing": lambda: Step.parallel("inner", {}, reduce=len),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_may_begin_with_any_container(engine, name):
    """M-285."""
    result = engine.run(of(loop(BODIES[name](), max_loops=3)), 0)
    assert (result.run_status, at(result, "again").attempts) == ("succeeded", 3)
    assert set(scopes(engine, result).values()) == {"succeeded"}


def test_what_never_meets_a_step_puts_a_message_in_between(engine):
    """No commit grows with the rounds of a loop that only goes through empty containers."""
    result = engine.run(of(loop(BODIES["a fan-out of nothing"](), max_loops=100)), 0)
    assert at(result, "again").attempts == 100
    starts = [each for each in engine.history(result.run_id) if each.kind == "start"]
    assert 5 <= len(starts) <= 20


class Title(BaseModel):
    title: str = ""


@pytest.mark.large
def test_no_one_carries_the_history(engine):
    """SYS-15: after thousands of rounds messages are as large as after ten, and rows are as many as rounds."""
    result = engine.run(of(loop(step("same", note(title="x")), max_loops=3000), model=Title), "in")
    digits = 2 * (len("3000") - len("10"))
    assert at(result, "again").attempts == 3000
    assert engine.sizes["again#3000"] == engine.sizes["again#10"] + digits
    assert len(engine.history(result.run_id)) == 3001
    assert set(scopes(engine, result).values()) == {"succeeded"}


def test_a_step_in_the_body_is_tried_again_as_anywhere(engine):
    """C-37, M-405: attempts are the step's own, iterations are the loop's."""
    flaky = Flaky(1)
    result = engine.run(of(loop(step("shaky", flaky, config=TWICE), max_loops=2)), "in")
    assert (result.run_status, flaky.calls) == ("succeeded", 3)
    assert at(result, "again").attempts == 2
    assert at(result, "again", "again#1", "shaky").attempts == 2


def test_a_step_that_fails_permanently_fails_the_loop(engine):
    """Nothing comes after it."""
    result = engine.run(of(loop(step("no", fails)), step("after")), "in")
    assert_attributed(engine, result, "step 'no'", "NonRetryableError", "no in")
    assert [each.name for each in result.step_history] == ["again"]
