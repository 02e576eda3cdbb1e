"""State machines, through the engine in one process: transitions, ends, and what leads nowhere."""

import pytest
from container_parts import (
    Notes,
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
    step,
)

from flujo_client.errors import PipelineAbortSignal
from flujo_client.pipeline.machine import StateMachineStep, Transition
from flujo_client.pipeline.step import Step

pytestmark = pytest.mark.engine(kind=WatchedEngine)


class Walk(Notes):
    current_state: str | None = None
    next_state: str | None = None


def machine(states, transitions, ends=("done",), start="a", **options):
    return StateMachineStep(
        "m", states=states, start_state=start, end_states=list(ends), transitions=transitions, **options
    )


def visited(result):
    return [each.name for each in at(result, "m").step_history]


def go(before, after, **rest):
    return {"from": before, "to": after, **rest}


def test_states_follow_each_other(engine):
    """SYS-16: each gets the output of the one before it; an end state without a pipeline runs nothing."""
    states = {"a": step("x", more), "b": step("y", more)}
    result = engine.run(bare(machine(states, [go("a", "b"), go("b", "done")])), 0)
    assert (result.output, visited(result)) == (2, ["a", "b"])
    assert at(result, "m").metadata_ == {"iterations": 2, "final_state": "done"}


def test_an_end_state_with_a_pipeline_runs_as_the_last(engine):
    states = {"a": step("x", more), "done": step("y", lambda data: f"done with {data}")}
    result = engine.run(bare(machine(states, [go("a", "done"), go("done", "a")])), 0)
    assert (result.output, visited(result)) == ("done with 1", ["a", "done"])


def test_a_start_state_may_be_the_end(engine):
    result = engine.run(bare(machine({"a": step("x", more)}, [], ends=["a"])), 0)
    assert (result.output, visited(result)) == (1, ["a"])


def test_a_state_may_be_visited_again(engine):
    """Each visit is a separate scope."""
    transitions = [Transition("a", "done", when=lambda output, _: output >= 3), Transition("*", "a")]
    result = engine.run(bare(machine({"a": step("x", more)}, transitions)), 0)
    assert (result.output, visited(result)) == (3, ["a", "a", "a"])
    assert {"m#1/a", "m#2/a", "m#3/a"} <= scopes(engine, result).keys()


async def later(output, context):
    return output == 2


@pytest.mark.parametrize("when", [lambda output, context: output == 2, later])
def test_the_first_transition_that_fits_is_taken(engine, when):
    """`when` is asked with the output and the context, in the order the transitions are written."""
    transitions = [go("a", "b", when=when), go("a", "a"), go("b", "done")]
    result = engine.run(bare(machine({"a": step("x", more), "b": step("y")}, transitions)), 0)
    assert visited(result) == ["a", "a", "b"]


def test_a_failure_may_lead_on(engine):
    """`on: failure`; what the failed state wrote is not merged, its input continues."""
    write = step("write", note(title="never"))
    states = {"a": write >> step("no", fails), "rescue": step("y", lambda data: f"rescued {data}")}
    result = engine.run(of(machine(states, [go("a", "rescue", on="failure")], ends=["rescue"])), "in")
    assert (result.run_status, result.output, visited(result)) == ("succeeded", "rescued in", ["a", "rescue"])
    assert [each.success for each in at(result, "m").step_history] == [False, True]
    assert result.final_pipeline_context.title == ""


def test_any_state_may_lead_on(engine):
    """`*`."""
    states = {"a": step("no", fails), "b": step("y", lambda data: "b")}
    result = engine.run(bare(machine(states, [go("*", "b", on="failure"), go("*", "done")])), "in")
    assert (result.output, visited(result)) == ("b", ["a", "b"])


def test_a_failure_that_leads_nowhere_fails_the_machine(engine):
    result = engine.run(bare(machine({"a": step("no", fails)}, [go("a", "done")])), "in")
    assert_attributed(engine, result, "state 'a' failed", "NonRetryableError", "no in")


def test_a_failing_end_state_is_no_end(engine):
    states = {"a": step("no", fails)}
    result = engine.run(bare(machine(states, [], ends=["a"])), "in")
    assert_attributed(engine, result, "state 'a' failed", "NonRetryableError", "no in")


def test_a_machine_that_is_stuck_says_where(engine):
    result = engine.run(bare(machine({"a": step("x")}, [go("a", "done", when=lambda *_: False)])), "in")
    said = "state machine 'm' has no transition from state 'a', which is not an end state"
    assert_attributed(engine, result, "m", "ExecutionError", said)


@pytest.mark.parametrize("most", [1, 5])
def test_visits_are_counted(engine, most):
    made = machine({"a": step("x", more), "b": step("y")}, [go("a", "a")], ends=["b"], max_visits=most)
    result = engine.run(bare(made), 0)
    assert_attributed(
        engine, result, "m", "ExecutionError", f"state machine 'm' visited {most} states without reaching"
    )
    assert visited(result) == ["a"] * most


def test_an_end_that_runs_nothing_is_no_visit(engine):
    """The limit bounds what is run."""
    result = engine.run(bare(machine({"a": step("x", more)}, [go("a", "done")], max_visits=1)), 0)
    assert result.output == 1


def test_a_condition_that_raises_fails_the_machine(engine):
    result = engine.run(bare(machine({"a": step("x")}, [go("a", "done", when=raises)])), "in")
    assert_attributed(engine, result, "next_state of 'm' failed with KeyError", "KeyError", "a bug")


def test_an_abort_does_not_count_as_a_failure(engine):
    """C-23."""

    def aborts(data):
        raise PipelineAbortSignal("enough")

    states = {"a": step("stop", aborts), "b": step("y")}
    result = engine.run(bare(machine(states, [go("*", "b", on="failure")], ends=["b"])), "in")
    assert (result.run_status, result.error.code, visited(result)) == ("failed", "PIPELINE_ABORT", ["a"])


def test_the_context_says_which_state_is_current(engine):
    """Where it has fields for it."""
    tell = step("x", lambda data, context: [*data, context.current_state])
    tell2 = step("y", lambda data, context: [*data, context.current_state])
    result = engine.run(of(machine({"a": tell, "b": tell2}, [go("a", "b"), go("b", "done")]), model=Walk), [])
    assert result.output == ["a", "b"]
    assert result.final_pipeline_context.current_state == "done"


def test_a_state_may_name_the_next_one(engine):
    """`next_state`, where no transition fits; it holds once."""
    states = {"a": step("x", note(next_state="c")), "b": step("y"), "c": step("z")}
    result = engine.run(of(machine(states, [go("a", "b", when=lambda *_: False)], ends=["b", "c"]), model=Walk), "in")
    assert visited(result) == ["a", "c"]
    assert result.final_pipeline_context.next_state is None


def test_a_next_state_that_there_is_not_is_named(engine):
    states = {"a": step("x", note(next_state="nowhere")), "b": step("y")}
    result = engine.run(of(machine(states, [], ends=["b"]), model=Walk), "in")
    assert_attributed(
        engine, result, "next_state of 'm'", "PipelineError", "next_state is 'nowhere', but the machine has"
    )


def test_what_states_wrote_is_kept_when_a_later_one_fails(engine):
    """C-13."""
    states = {"a": step("x", note(title="a")), "b": step("no", fails)}
    result = engine.run(of(machine(states, [go("a", "b")], ends=["b"])), "in")
    assert (result.run_status, result.final_pipeline_context.title) == ("failed", "a")


def test_states_may_hold_containers(engine):
    """M-285."""
    fan = Step.parallel("fan", {"x": step("x", more), "y": step("y", more)}, reduce="first")
    loop = Step.loop_until("loop", step("z", more), lambda output, _: output >= 5)
    result = engine.run(bare(machine({"a": fan, "b": loop}, [go("a", "b"), go("b", "done")])), 0)
    assert (result.output, visited(result)) == (5, ["a", "b"])
