"""Fallbacks, through the engine in one process: when they run, what they see, what the result says (SYS-10)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from container_parts import (
    ONCE,
    SPENT,
    TWICE,
    Flaky,
    Notes,
    WatchedEngine,
    assert_attributed,
    at,
    bare,
    echo,
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

from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.limits import UsageLimits
from flujo_client.contract.results import StepResult
from flujo_client.contract.trace import build_trace
from flujo_client.errors import (
    InfiniteFallbackError,
    PipelineAbortSignal,
    PluginError,
    RunFailed,
    UsageLimitExceededError,
)
from flujo_client.pipeline.machine import StateMachineStep
from flujo_client.pipeline.nested import ImportStep
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step, StepConfig
from flujo_client.pipeline.step import step as step_of
from flujo_client.serial import loads
from flujo_worker.agents.answer import AgentAnswer
from tests.support.builders import member
from tests.support.memory import asked

pytestmark = pytest.mark.engine(kind=WatchedEngine)

NO = "Agent execution failed with NonRetryableError: no in"
THRICE = StepConfig(max_retries=2)


def refuses(_):
    return False, "not good enough"


class Refusing:
    def validate(self, _):
        raise PluginError("not good enough")


class Counting:
    """An agent that counts how often it is asked, and fails each time."""

    def __init__(self):
        self.calls = 0

    def run(self, data):
        self.calls += 1
        raise ValueError(f"call {self.calls}")


def aborts(_):
    raise PipelineAbortSignal("enough")


def wrote(data):
    return f"other {data}"


def event_data(engine, result, name):
    return [each.data for each in engine.story(result.run_id) if each.name == name]


def timeless(result):
    return StepResult.model_validate(result.model_dump(exclude={"latency_s"}))


def test_a_step_that_succeeds_is_told_as_if_it_had_no_fallback(engine):
    """M-406, M-043: fallbacks change nothing about what needs none."""
    plain = step("x", Flaky(1), config=TWICE)
    alone = at(engine.run(bare(plain), "in"), "x")
    result = engine.run(bare(replace(plain, agent=Flaky(1)).fallback(step("y", raises))), "in")
    assert timeless(at(result, "x")) == timeless(alone)
    assert (at(result, "x").attempts, event_data(engine, result, "flujo.fallback.triggered")) == (2, [])


def test_the_fallback_gives_the_step_its_output(engine):
    """M-406: the step keeps its name; that it fell back, and why, is in the metadata; the feedback is cleared."""
    result = engine.run(bare(step("x", fails).fallback(step("y", wrote)), step("z", more_of)), "in")
    found = at(result, "x")
    assert (result.output, [each.name for each in result.step_history]) == ("other in, more", ["x", "z"])
    assert (found.output, found.success, found.feedback) == ("other in", True, None)
    assert found.metadata_ == {"fallback_triggered": True, "original_error": NO}
    assert [(each.name, each.success, each.feedback) for each in found.step_history] == [
        ("x", False, NO),
        ("y", True, None),
    ]


def more_of(data):
    return f"{data}, more"


def test_the_figures_are_those_of_both(engine):
    """M-406, U-30: sums of what attempts spent, nothing estimated."""
    primary = step("x", paid, validators=[refuses])
    result = engine.run(bare(primary.fallback(step("y", paid))), "in")
    found = at(result, "x")
    assert (found.attempts, found.cost_usd, found.token_counts) == (2, 0.5, 30)
    assert (result.total_cost_usd, result.total_tokens) == (0.5, 30)
    assert found.latency_s == sum(each.latency_s for each in found.step_history)


def test_all_attempts_come_before_the_fallback_and_are_counted(engine):
    """C-37, M-405."""
    agent = Counting()
    found = at(engine.run(bare(step("x", agent, config=THRICE).fallback(step("y"))), "in"), "x")
    assert (agent.calls, found.attempts, found.metadata_["original_error"][-6:]) == (3, 4, "call 3")


@pytest.mark.parametrize("judge", [{"validators": [refuses]}, {"plugins": [Refusing()]}], ids=["validator", "plugin"])
def test_a_refusal_ends_the_step_at_once_and_the_fallback_runs(engine, judge):
    """C-01, M-288: one call of the agent with retries left."""
    agent = Flaky(0)
    result = engine.run(bare(step("x", agent, config=THRICE, **judge).fallback(step("y", wrote))), "in")
    assert (result.output, agent.calls) == ("other in", 1)
    assert "not good enough" in at(result, "x").metadata_["original_error"]


def test_a_fallback_is_asked_once(engine):
    """C-01, requirements §2.5: its own retries count for nothing, in a chain of them too."""
    second, third = Counting(), Counting()
    chain = step("y", second, config=THRICE).fallback(step("z", third, config=THRICE))
    engine.run(bare(step("x", fails).fallback(chain)), "in")
    assert (second.calls, third.calls) == (1, 1)


def test_a_router_as_a_fallback_asks_its_agent_once(engine):
    agent = Counting()
    router = Step.dynamic_parallel_branch("r", agent, {"a": step("a")}, config=THRICE)
    engine.run(bare(step("x", fails).fallback(router)), "in")
    assert agent.calls == 1


def test_what_is_in_a_container_is_tried_as_ever(engine):
    """What should be tried more often goes into a pipeline."""
    again = bare(step("y", Flaky(2), config=THRICE)).as_step("again")
    result = engine.run(bare(step("x", fails).fallback(again)), "in")
    assert (result.output, at(result, "x", "again", "again", "y").attempts) == ("in", 3)


def test_when_both_fail_both_are_told(engine):
    """M-406, requirements §2.5."""
    result = engine.run(bare(step("x", fails).fallback(step("y", raises)), step("z")), "in")
    found = at(result, "x")
    assert_attributed(engine, result, "Original error: ", "KeyError", "a bug")
    assert found.feedback == f"Original error: {NO}; Fallback error: Agent execution failed with KeyError: 'a bug'"
    assert (found.output, found.attempts, found.metadata_["original_error"]) == (None, 2, NO)
    assert [each.name for each in result.step_history] == ["x"]


def test_the_feedback_of_a_success_says_why_where_that_is_wanted(engine):
    """M-406 `preserve_fallback_diagnostics`."""
    config = StepConfig(max_retries=0, preserve_fallback_diagnostics=True)
    kept = engine.run(bare(step("x", fails, config=config).fallback(step("y"))), "in")
    unused = engine.run(bare(step("x", echo, config=config).fallback(step("y"))), "in")
    assert at(kept, "x").feedback == f"Original error: {NO}"
    assert at(unused, "x").feedback is None


def test_a_fallback_may_have_a_fallback(engine):
    result = engine.run(bare(step("x", fails).fallback(step("y", raises).fallback(step("z", wrote)))), "in")
    assert (result.output, at(result, "x").attempts) == ("other in", 3)
    assert at(result, "x").metadata_["original_error"] == NO
    assert "a bug" in at(result, "x", "y").metadata_["original_error"]
    assert [each.name for each in at(result, "x", "y").step_history] == ["y", "z"]


def test_what_the_fallback_told_is_told_of_the_step(engine):
    loop = Step.loop_until("l", step("b"), lambda *_: True)
    result = engine.run(bare(step("x", fails).fallback(loop)), "in")
    assert at(result, "x").metadata_.items() >= {"iterations": 1, "fallback_triggered": True}.items()


def test_the_story_tells_it_once(engine):
    result = engine.run(bare(step("x", fails).fallback(step("y"))), "in")
    assert event_data(engine, result, "flujo.fallback.triggered") == [{"step": "x", "original_error": NO}]


def test_secrets_are_in_no_original_error(engine):
    def leaks(_):
        raise ValueError("the key is sk-abcdefghijklmnopqrstuvwxyz123456")

    result = engine.run(bare(step("x", leaks).fallback(step("y"))), "in")
    assert "sk-abcdefghij" not in str(at(result, "x")) + str(event_data(engine, result, "flujo.fallback.triggered"))


def test_a_fallback_has_the_steps_own_input_and_context(engine):
    """C-13, M-043: also of a loop, whose finished iterations are kept where it has no fallback."""
    body = of(step("w", seen), step("n", more))
    loop = Step.loop_until("l", body, lambda output, _: output > 1 and raises())
    result = engine.run(of(step("a", note(title="before")), loop.fallback(step("y", seen))), 0)
    assert (result.output, result.final_pipeline_context.seen) == (0, [0])
    assert (result.final_pipeline_context.count, result.final_pipeline_context.title) == (1, "before")


def test_what_a_failed_loop_keeps_is_kept_when_both_fail(engine):
    """C-13: what the last failure hands up."""
    loop = Step.loop_until("l", step("w", seen), lambda *_: raises())
    result = engine.run(of(step("x", fails).fallback(loop)), 5)
    assert (result.run_status, result.final_pipeline_context.seen) == ("failed", [5])


def test_what_it_writes_is_the_contexts(engine):
    """M-280, M-406: context preserved; gathering finds the output under both names."""
    gather = Step.gather("g", ["x", "y"])
    result = engine.run(of(step("x", fails).fallback(step("y", note(title="mine"))), gather), "in")
    assert (result.output, result.final_pipeline_context.title) == ({"x": "in", "y": "in"}, "mine")


def test_an_abort_calls_no_fallback(engine):
    """M-042, C-23."""
    result = engine.run(bare(step("x", aborts).fallback(step("y"))), "in")
    assert (result.error.code, at(result, "x").attempts) == ("PIPELINE_ABORT", 1)
    assert event_data(engine, result, "flujo.fallback.triggered") == []
    with pytest.raises(PipelineAbortSignal):
        result.raise_for_status()


def test_an_abort_in_a_fallback_passes_untouched(engine):
    """M-042: its words are its own."""
    result = engine.run(bare(step("x", fails).fallback(step("y", aborts))), "in")
    assert result.error.code == "PIPELINE_ABORT"
    assert "Original error" not in at(result, "x").feedback


def test_an_endless_fallback_that_is_raised_passes_too(engine):
    """M-042: as its own class."""

    def endless(_):
        raise InfiniteFallbackError("round and round")

    result = engine.run(bare(step("x", endless).fallback(step("y"))), "in")
    with pytest.raises(InfiniteFallbackError, match="round and round"):
        result.raise_for_status()


def test_a_cancelled_run_calls_no_fallback(engine):
    run = engine.enqueue(bare(step("x", fails).fallback(step("y"))), "in")
    engine.deliver(engine.bus.popleft())
    asked(engine.stores).request_cancel(run)
    engine.drain()
    result = engine.result(run)
    assert (result.run_status, "x/fallback" in scopes(engine, result)) == ("cancelled", False)


def test_a_run_that_is_cancelled_in_its_fallback_tells_both(engine):
    run = engine.enqueue(bare(step("x", fails).fallback(step("y"))), "in")
    for _ in range(2):
        engine.deliver(engine.bus.popleft())
    asked(engine.stores).request_cancel(run)
    engine.drain()
    found = at(engine.result(run), "x")
    assert (found.success, found.output, found.metadata_["fallback_triggered"]) == (False, None, True)
    assert [each.name for each in found.step_history] == ["x", "y"]


def test_a_branch_that_is_aborted_calls_no_fallback(engine):
    """SYS-13: what is in a fan-out that was aborted closes itself."""
    branches = {"a": step("x", fails).fallback(step("y")), "b": step("z", fails)}
    run = engine.enqueue(bare(Step.parallel("fan", branches)), "in")
    engine.deliver(engine.bus.popleft())  # the fan-out's start
    engine.deliver(engine.bus.popleft())  # the fallback's, in branch a; then branch b fails
    engine.drain()
    found = scopes(engine, engine.result(run))
    assert (found["fan/a/x"], found["fan/a/x/primary"], found["fan/b"]) == ("cancelled", "cancelled", "failed")
    assert "fan/a/x/fallback" not in found


def test_a_step_that_takes_its_workers_with_it_has_a_fallback_too(engine):
    run = engine.enqueue(bare(step("x").fallback(step("y", wrote))), "in")
    engine.deliver(engine.bus.popleft())
    engine.stores.leases.register_worker(member("ghost"), 5.0)
    engine.stores.attempts.claim(Envelope.from_wire(loads(engine.bus.popleft())).key, "ghost", max_lost=1, room="alone")
    engine.now += 100.0
    [(envelope, fence, _)] = engine.stores.backlog.poisoned(judge="local", max_lost=0, limit=9)
    engine.coordinator.lost(envelope, fence, 1)
    engine.drain()
    assert engine.result(run).output == "other in"
    assert "died while this step ran alone" in at(engine.result(run), "x").metadata_["original_error"]


MADE = {
    "loop": lambda body: Step.loop_until("box", body, lambda *_: True),
    "map": lambda body: Step.map_over("box", body, iterable_input="items"),
    "parallel map": lambda body: Step.map_over("box", body, iterable_input="items", parallel=True),
    "parallel": lambda body: Step.parallel("box", {"only": body}, ignore_branch_names=True),
    "lanes": lambda body: Step.parallel("box", {"a": body, "b": body}, max_concurrency=1),
    "router": lambda body: Step.dynamic_parallel_branch("box", lambda _: ["only"], {"only": body}),
    "conditional": lambda body: Step.branch_on("box", lambda *_: "only", {"only": body}),
    "nested": lambda body: ImportStep("box", pipeline=body, inherit_context=True),
    "a run of its own": lambda body: ImportStep("box", pipeline=body, inherit_context=True, own_run=True),
    "machine": lambda body: StateMachineStep(
        "box", states={"a": body}, start_state="a", end_states=["a"], transitions=[]
    ),
}
each_container = pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())


class Work(Notes):
    items: tuple[str, ...] = ("in",)


@each_container
def test_any_container_may_have_a_fallback(engine, make):
    """C-19, M-407: what was written in the one that failed is not there."""
    box = make(Pipeline([step("w", note(title="never")), step("n", fails)]))
    result = engine.run(of(box.fallback(step("y", wrote)), model=Work), "in")
    assert (result.output, result.final_pipeline_context.title) == ("other in", "")
    assert "no in" in at(result, "box").metadata_["original_error"]
    assert [each.name for each in at(result, "box").step_history] == ["box", "y"]
    assert "open" not in scopes(engine, result).values()


@each_container
def test_any_container_may_be_a_fallback(engine, make):
    box = make(Pipeline([step("w", note(title="written")), step("n", paid)]))
    result = engine.run(of(step("x", fails).fallback(box), model=Work), "in")
    assert (result.success, result.final_pipeline_context.title) == (True, "written")
    assert at(result, "x").output == result.final_pipeline_context.step_outputs["box"]
    assert at(result, "x").cost_usd == result.total_cost_usd > 0


@each_container
def test_a_step_in_any_container_may_have_a_fallback(engine, make):
    """SYS-10: the first node of the body and the second."""
    inside = [step("x", fails).fallback(step("y")), step("n", fails).fallback(step("m", note(title="mine")))]
    result = engine.run(of(make(Pipeline(inside)), model=Work), "in")
    assert (result.success, result.final_pipeline_context.title) == (True, "mine")
    assert "open" not in scopes(engine, result).values()


def test_a_container_that_needs_no_fallback_is_told_as_it_is(engine):
    loop = Step.loop_until("l", step("b"), lambda *_: True)
    alone = at(engine.run(bare(loop), 1), "l")
    found = at(engine.run(bare(loop.fallback(step("y"))), 1), "l")
    assert found.model_dump(exclude=_TIMES) == alone.model_dump(exclude=_TIMES)


_TIMES = {
    "latency_s": True,
    "step_history": {"__all__": {"latency_s": True, "step_history": {"__all__": {"latency_s"}}}},
}


def test_a_failed_router_keeps_nothing_its_agent_wrote(engine):
    """M-284: that is merged if there is no fallback."""

    def choose(_, *, context):
        context.title = "chosen"
        return AgentAnswer(["a"], SPENT)

    router = Step.dynamic_parallel_branch("r", choose, {"a": step("a", fails)})
    result = engine.run(of(router.fallback(step("y"))), "in")
    assert (result.success, result.final_pipeline_context.title) == (True, "")
    assert at(result, "r").cost_usd == 0.25


def test_a_context_that_grows_too_large_fails_the_step_although_its_fallback_has_not():
    """C-15: the output is in the context under both names."""
    with WatchedEngine(Settings(limits={"snapshot_max_bytes": 1500, "snapshot_inline_bytes": 1500})) as engine:
        result = engine.run(of(step("x", fails).fallback(step("y", lambda _: "y" * 700))), "in")
        found = at(result, "x")
    assert (result.error.type_name, found.success, found.step_history[-1].success) == ("SnapshotTooLarge", False, True)
    assert found.feedback.startswith("keep_output of 'x' failed")


def test_the_trace_shows_both(engine):
    """M-292: run → container → body → step → attempt."""
    result = engine.run(bare(step("x", fails).fallback(step("y", paid))), "in")
    run, stores = engine.stores.reads.read_run(result.run_id), engine.stores
    rows = stores.reads.read_attempts(run.id), stores.reads.read_scopes(run.id), engine.story(run.id)
    [box] = build_trace(run, *rows).children
    assert (box.name, box.kind, box.status, box.attributes["cost_usd"]) == ("x", "fallback", "succeeded", 0.25)
    told = [(each.name, each.kind, each.status, each.children[0].name) for each in box.children]
    assert told == [("primary", "body", "failed", "x"), ("fallback", "body", "succeeded", "y")]


def test_a_fallback_is_given_by_option_or_method():
    """Requirements §2.3: the method gives a copy."""
    other = step("y")
    plain = step("x")
    written = step_of(name="x", fallback_step=other, max_retries=0)(echo)
    assert plain.fallback(other).fallback_step is written.fallback_step is other
    assert (plain.fallback_step, plain.fallback(other).config) == (None, ONCE)
    assert Step.loop_until("l", plain, raises, fallback_step=other).fallback_step is other


def test_a_run_without_luck_raises_as_ever(engine):
    with pytest.raises(RunFailed, match="a bug"):
        engine.run(bare(step("x", fails).fallback(step("y", raises))), "in").raise_for_status()


def test_what_has_nothing_left_to_spend_is_no_reason_to_spend_more(engine):
    """C-10: a limit that refuses the primary refuses the step; its fallback is never asked."""
    asked = []
    primary = Step("dear", lambda _: "never", config=StepConfig(expected_tokens=100))
    step = primary.fallback(Step("cheap", lambda _: asked.append(1)))
    result = engine.run(Pipeline([step]), "go", limits=UsageLimits(total_tokens_limit=10))
    assert not result.success
    assert asked == []
    with pytest.raises(UsageLimitExceededError):
        result.raise_for_status()
