"""Hooks through the engine in one process: the payload of each, when it is called, and what it can stop (§2.9, SYS-20)."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
from container_parts import QUICK, SPENT, TWICE, Flaky, Notes, bare, echo, fails, more, paid, step

from flujo_client import (
    HookPayload,
    OnStepFailurePayload,
    ParallelStep,
    Pipeline,
    PostStepPayload,
    PreRunPayload,
    PreStepPayload,
    Step,
    StepConfig,
)
from flujo_client.config.manager import Settings
from flujo_client.contract.limits import UsageLimits
from flujo_client.errors import PausedException, PipelineAbortSignal, UsageLimitExceededError
from flujo_client.pipeline.human import HumanInTheLoopStep
from flujo_worker.replay.replay import replay
from flujo_worker.testing import LocalEngine
from tests.support.builders import packed
from tests.support.memory import asked

STRICT = Settings(hooks={"strict": True})
STOPPABLE = ["pre_run", "pre_step", "post_step", "on_step_failure"]


@pytest.fixture
def strict():
    with LocalEngine(STRICT) as engine:
        yield engine


class Told:
    """A hook that remembers what it received, and raises at one payload."""

    def __init__(self, at=None, error=None):
        self.payloads, self._at, self._error = [], at, error

    def __call__(self, payload):
        self.payloads.append(payload)
        if payload.event_name == self._at:
            raise self._error

    @property
    def names(self):
        return [each.event_name for each in self.payloads]

    def steps(self, name):
        return [each.step_name for each in self.payloads if each.event_name == name]

    def only(self, name):
        [found] = [each for each in self.payloads if each.event_name == name]
        return found


def hooked(*steps, hooks, model=None):
    return Pipeline(list(steps), name="offers", hooks=hooks, context_model=model)


def told_failures(engine, run):
    return [event.data for event in engine.story(run) if event.name == "hook.failed"]


def test_a_run_is_told_from_its_beginning_to_its_end(engine):
    told = Told()
    engine.run(hooked(step("a"), step("b"), hooks=[told]), 1)
    assert told.names == ["pre_run", "pre_step", "post_step", "pre_step", "post_step", "post_run"]


def test_payloads_tell_what_their_names_say(engine):
    """§2.9: each with its own fields, the run's id and name, and the context of the moment."""
    told = Told()
    pipeline = hooked(step("a", more, sink_to="count"), hooks=[told], model=Notes)
    result = engine.run(pipeline, 1, context={"title": "bees"})
    assert {(each.run_id, each.pipeline_name, each.context.title) for each in told.payloads} == {
        (result.run_id, "offers", "bees")
    }
    assert [each.context.count for each in told.payloads] == [0, 0, 2, 2]
    assert told.only("pre_run").initial_input == 1
    before, after = told.only("pre_step"), told.only("post_step")
    assert (before.step.name, before.step_name, before.address, before.step_input) == ("a", "a", "", 1)
    assert (after.step_result.output, after.step_result.success, after.step_result.attempts) == (2, True, 1)
    assert told.only("post_run").pipeline_result == result


def test_a_failure_is_told_once_its_last_attempt_has_failed(engine):
    """The step's failure, not each attempt's; and pre_step once."""
    told = Told()
    pipeline = hooked(step("a", Flaky(5), config=TWICE), hooks=[told])
    engine.run(pipeline, 1)
    assert told.names == ["pre_run", "pre_step", "on_step_failure", "post_run"]
    result = told.only("on_step_failure").step_result
    assert (result.success, result.attempts) == (False, 2)
    assert "try 2" in result.feedback


def test_a_retry_that_helps_is_no_failure(engine):
    told = Told()
    engine.run(hooked(step("a", Flaky(1), config=TWICE), hooks=[told]), 1)
    assert told.names == ["pre_run", "pre_step", "post_step", "post_run"]
    assert told.only("post_step").step_result.attempts == 2


def test_what_an_attempt_spent_is_told(engine):
    told = Told()
    engine.run(hooked(step("a", paid), hooks=[told]), 1)
    result = told.only("post_step").step_result
    assert (result.token_counts, result.cost_usd) == (SPENT.input_tokens + SPENT.output_tokens, SPENT.cost_usd)


def test_a_fallback_is_a_step_of_its_own(engine):
    told = Told()
    spare = step("spare", echo)
    engine.run(hooked(step("a", fails, fallback_step=spare), hooks=[told]), 1)
    assert told.names == ["pre_run", "pre_step", "on_step_failure", "pre_step", "post_step", "post_run"]
    assert told.steps("pre_step") == ["a", "spare"]


def test_steps_in_containers_are_told_with_their_address(engine):
    """A container does no work itself; pre_run is told before whatever it begins with."""
    told = Told()
    fork = ParallelStep("fork", branches={"x": step("s"), "y": step("s")}, merge_strategy="no_merge")
    result = engine.run(hooked(fork, hooks=[told]), 1)
    assert (result.run_status, told.names[0], told.names[-1]) == ("succeeded", "pre_run", "post_run")
    assert {each.address for each in told.payloads if each.event_name == "pre_step"} == {"fork/x", "fork/y"}
    assert told.names.count("pre_run") == 1


def test_a_step_whose_result_is_cached_tells_nothing(engine):
    """It was not tried."""
    told = Told()
    pipeline = hooked(Step.cached(step("a", more)), hooks=[told])
    engine.run(pipeline, 1)
    told.payloads.clear()
    assert (engine.run(pipeline, 1).output, told.names) == (2, ["pre_run", "post_run"])


def test_values_that_are_only_pointed_at_are_told_whole():
    settings = Settings(limits={"snapshot_inline_bytes": 0})
    told = Told()
    with LocalEngine(settings) as pointing:
        pointing.run(hooked(step("a"), hooks=[told], model=Notes), "x" * 100, context={"title": "bees"})
    assert told.only("pre_step").step_input == told.only("pre_run").initial_input == "x" * 100
    assert {each.context.title for each in told.payloads} == {"bees"}


def test_a_retried_run_begins_and_ends_too(engine):
    """A fork is a separate run."""
    told = Told()
    first = engine.run(hooked(step("a"), step("b", fails), hooks=[told]), 1)
    told.payloads.clear()
    forked = engine.retry(first.run_id, "b")
    assert told.names == ["pre_run", "pre_step", "on_step_failure", "post_run"]
    assert {each.run_id for each in told.payloads} == {forked.run_id}


def test_a_cancelled_run_has_ended(engine):
    told = Told()
    run = engine.enqueue(hooked(step("a"), hooks=[told]), 1)
    asked(engine.stores).request_cancel(run, "enough")
    engine.drain()
    assert told.names == ["post_run"]
    assert told.only("post_run").pipeline_result.run_status == "cancelled"


def ask(**rest):
    return HumanInTheLoopStep("ask", message_for_user="well?", **rest)


def test_a_question_is_told_and_so_is_its_answer(engine):
    told = Told()
    run = engine.run(hooked(ask(), hooks=[told], model=Notes), 1, context={"title": "bees"})
    asked = told.only("on_pause_requested")
    assert (asked.message, asked.step_name, asked.address, asked.context.title) == ("well?", "ask", "", "bees")
    assert told.names == ["pre_run", "on_pause_requested"]
    engine.answer(run.run_id, "yes")
    assert told.names[2:] == ["post_step", "post_run"]
    assert told.only("post_step").step_result.output == "yes"


def test_a_step_that_pauses_is_told_like_a_question(engine):
    """Neither a success nor a failure."""

    def pauses(data):
        raise PausedException("look here")

    told = Told()
    engine.run(hooked(step("a", pauses), hooks=[told]), 1)
    assert told.names == ["pre_run", "pre_step", "on_pause_requested"]
    assert told.only("on_pause_requested").message == "look here"


def test_a_refused_answer_is_another_question_and_no_failure(engine):
    told = Told()
    run = engine.run(hooked(ask(input_schema=int), hooks=[told]), 1).run_id
    engine.stores.client.answer(engine.approvals(run)[0].key, packed("no number"))
    engine.drain()
    assert told.names == ["pre_run", "on_pause_requested", "on_pause_requested"]
    assert told.payloads[-1].input_schema == {"type": "integer"}


def test_an_abort_at_a_question_ends_the_run(engine):
    told = Told("on_pause_requested", PipelineAbortSignal("ask nobody"))
    result = engine.run(hooked(ask(), hooks=[told]), 1)
    with pytest.raises(PipelineAbortSignal, match="ask nobody"):
        result.raise_for_status()
    assert (result.run_status, told.names) == ("failed", ["pre_run", "on_pause_requested", "post_run"])
    assert engine.approvals(result.run_id) == []


def test_a_hook_is_called_with_the_payloads_it_is_annotated_with(engine):
    heard = []

    def one(payload: PreRunPayload):
        heard.append(("one", payload.event_name))

    def some(payload: PostStepPayload | OnStepFailurePayload):
        heard.append(("some", payload.event_name))

    def every(payload: HookPayload):
        heard.append(("every", payload.event_name))

    engine.run(hooked(step("a"), hooks=[one, some, every]), 1)
    names = ["pre_run", "pre_step", "post_step", "post_run"]
    assert [name for who, name in heard if who == "every"] == names
    assert [each for each in heard if each[0] != "every"] == [("one", "pre_run"), ("some", "post_step")]


def test_a_hook_may_be_a_coroutine_function(engine):
    heard = []

    async def hook(payload):
        await asyncio.sleep(0)
        heard.append(payload.event_name)

    engine.run(hooked(step("a"), hooks=[hook]), 1)
    assert heard == ["pre_run", "pre_step", "post_step", "post_run"]


def test_a_hook_changes_nothing(engine):
    """Each gets its own payload; neither the run nor the next hook sees what one did to it."""

    def spoils(payload):
        for value in (payload.context, getattr(payload, "step_input", None), getattr(payload, "initial_input", None)):
            if isinstance(value, Notes):
                value.title = "spoilt"
            if isinstance(value, list):
                value.append("spoilt")

    told = Told()
    result = engine.run(hooked(step("a"), hooks=[spoils, told], model=Notes), ["in"], context={"title": "bees"})
    assert (result.output, result.final_pipeline_context.title) == (["in"], "bees")
    assert {each.context.title for each in told.payloads} == {"bees"}
    assert told.only("pre_step").step_input == told.only("pre_run").initial_input == ["in"]


def test_hooks_of_a_nested_pipeline_are_told_of_its_steps_only(engine):
    """After those of the pipelines around it."""
    order, inner_told = [], Told()
    inner = Pipeline([step("b")], hooks=[lambda payload: order.append(("inner", payload.event_name)), inner_told])
    outer = hooked(step("a"), inner.as_step("n"), hooks=[lambda payload: order.append(("outer", payload.event_name))])
    engine.run(outer, 1)
    assert inner_told.names == ["pre_step", "post_step"]
    assert [name for who, name in order if who == "outer"] == [
        "pre_run",
        *["pre_step", "post_step"] * 2,
        "post_run",
    ]
    assert [who for who, name in order if name == "pre_step"] == ["outer", "outer", "inner"]


def test_a_child_run_has_the_hooks_of_its_own_pipeline(engine):
    inner_told, outer_told = Told(), Told()
    inner = Pipeline([step("b")], name="checks", hooks=[inner_told])
    result = engine.run(hooked(step("a"), inner.as_step("n", own_run=True), hooks=[outer_told]), 1)
    [child] = engine.children(result.run_id)
    assert inner_told.names == ["pre_run", "pre_step", "post_step", "post_run"]
    assert {(each.run_id, each.pipeline_name) for each in inner_told.payloads} == {(child.id, "checks")}
    assert outer_told.steps("pre_step") == ["a"]
    assert outer_told.names.count("post_run") == 1


def test_a_step_in_the_background_has_the_step_hooks_it_is_written_under(engine):
    """Its run is none of a pipeline, and is not told of."""
    told = Told()
    behind = step("b", config=StepConfig(max_retries=0, execution_mode="background"))
    result = engine.run(hooked(step("a"), behind, hooks=[told]), 1)
    assert sorted(told.steps("pre_step")) == ["a", "b"]
    assert [each.run_id for each in told.payloads if each.event_name == "post_run"] == [result.run_id]


@pytest.mark.parametrize("at", [*STOPPABLE, "post_run", "on_pause_requested"])
def test_an_error_in_a_hook_is_told_and_breaks_nothing(engine, at):
    """§2.9; redacted, like all that is told."""
    told = Told(at, OSError("no route to postgresql://app:hunter2@db/app"))
    pipeline = hooked(step("a", fails if at == "on_step_failure" else echo), ask(), hooks=[told])
    result = engine.run(pipeline, 1)
    if result.run_status == "paused":
        result = engine.answer(result.run_id, "yes")
    assert result.run_status == ("failed" if at == "on_step_failure" else "succeeded")
    failures = told_failures(engine, result.run_id)
    assert {(each["hook"], each["payload"], each["error"]) for each in failures} == {("Told", at, "OSError")}
    assert "hunter2" not in str(failures)


def test_a_hook_that_fails_does_not_keep_the_next_from_being_called(engine):
    told = Told()
    engine.run(hooked(step("a"), hooks=[Told("pre_step", ValueError("no")), told]), 1)
    assert told.names == ["pre_run", "pre_step", "post_step", "post_run"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_hook_that_hangs_is_left_behind(kind):
    """A hook must not hold a worker forever: it has the time of any function a pipeline names."""
    released = threading.Event()

    def hangs(payload: PreStepPayload):
        released.wait(30)

    async def hangs_too(payload: PreStepPayload):
        await asyncio.sleep(30)

    with LocalEngine(QUICK) as engine:
        result = engine.run(hooked(step("a"), hooks=[hangs if kind == "sync" else hangs_too]), 1)
        released.set()
        [failure] = told_failures(engine, result.run_id)
    assert (result.run_status, failure["error"]) == ("succeeded", "TimeoutError")


def test_a_hook_cannot_end_the_process(engine):
    def leaves(payload: PreStepPayload):
        sys.exit(3)

    result = engine.run(hooked(step("a"), hooks=[leaves]), 1)
    assert (result.run_status, told_failures(engine, result.run_id)[0]["error"]) == ("succeeded", "SystemExit")


def test_a_hook_cannot_pause_a_run(engine):
    result = engine.run(hooked(step("a"), hooks=[Told("pre_step", PausedException("wait"))]), 1)
    assert result.run_status == "succeeded"


@pytest.mark.parametrize("at", STOPPABLE)
def test_an_abort_ends_the_run(engine, at):
    """§2.9: as one that a step raises does."""
    told = Told(at, PipelineAbortSignal("enough"))
    called = []

    def agent(data):
        called.append(data)
        return fails(data) if at == "on_step_failure" else data

    result = engine.run(hooked(step("a", agent), step("b", agent), hooks=[told]), 1)
    with pytest.raises(PipelineAbortSignal, match="enough"):
        result.raise_for_status()
    assert (result.run_status, told.names[-2:]) == ("failed", [at, "post_run"])
    assert called == ([] if at in ("pre_run", "pre_step") else [1])
    assert result.step_history[-1].feedback == "hook Told failed with PipelineAbortSignal: enough"


def test_an_abort_before_a_container_ends_the_run(engine):
    """Nothing of it is begun."""
    told = Told("pre_run", PipelineAbortSignal("enough"))
    fork = ParallelStep("fork", branches={"x": step("s"), "y": step("s")}, merge_strategy="no_merge")
    result = engine.run(hooked(fork, hooks=[told]), 1)
    assert (result.run_status, result.error.code, told.names) == ("failed", "PIPELINE_ABORT", ["pre_run", "post_run"])


def test_an_abort_after_a_step_takes_its_result_back(engine):
    """What it spent stays spent; law 4: the context is what it was."""
    told = Told("post_step", PipelineAbortSignal("enough"))
    result = engine.run(hooked(step("a", paid, sink_to="count"), hooks=[told], model=Notes), 7)
    assert (result.unchecked().output, result.final_pipeline_context.count) == (None, 0)
    assert engine.history(result.run_id)[0].output is None
    assert result.total_cost_usd == SPENT.cost_usd


@pytest.mark.parametrize("at", ["pre_step", "on_step_failure"])
def test_an_abort_passes_through_every_container(engine, at):
    """C-20: no fallback, no other branch, no import takes it for an ordinary failure."""
    told = Told(at, PipelineAbortSignal("enough"))
    inner = Pipeline([step("s", fails, fallback_step=step("spare"))]).as_step("n", on_failure="skip")
    fork = ParallelStep("fork", branches={"x": inner}, merge_strategy="no_merge", on_branch_failure="ignore")
    result = engine.run(hooked(fork, hooks=[told]), 1)
    assert (result.run_status, result.error.code, told.steps("pre_step")) == ("failed", "PIPELINE_ABORT", ["s"])


def test_after_a_hook_that_stops_none_is_called_until_the_end(engine):
    told = Told()
    engine.run(hooked(step("a"), hooks=[Told("pre_step", PipelineAbortSignal("enough")), told]), 1)
    assert told.names == ["pre_run", "post_run"]


def test_an_abort_of_a_child_run_aborts_its_parent(engine):
    inner = Pipeline([step("b")], hooks=[Told("pre_run", PipelineAbortSignal("enough"))])
    result = engine.run(bare(inner.as_step("n", own_run=True, on_failure="skip")), 1)
    assert (result.run_status, result.error.code) == ("failed", "PIPELINE_ABORT")


@pytest.mark.parametrize("error", [PipelineAbortSignal("enough"), ValueError("no")])
def test_an_end_stands_whatever_post_run_raises(strict, error):
    """§2.1, law 5: it is told, nothing follows, and the other hooks are called."""
    told = Told()
    result = strict.run(hooked(step("a"), hooks=[Told("post_run", error), told]), 1)
    assert (result.run_status, told.names[-1]) == ("succeeded", "post_run")
    [failure] = told_failures(strict, result.run_id)
    assert (failure["payload"], failure["error"]) == ("post_run", type(error).__name__)


def test_an_abort_in_post_run_does_not_mask_a_limit(engine):
    """§2.1: the limit's error stays, and the partial result with it."""
    told = Told("post_run", PipelineAbortSignal("enough"))
    pipeline = hooked(step("a", paid), step("b", paid), hooks=[told])
    result = engine.run(pipeline, 1, limits=UsageLimits(total_cost_usd_limit=0.3))
    with pytest.raises(UsageLimitExceededError) as raised:
        result.raise_for_status()
    assert raised.value.result.step_history[0].output == 1
    assert told.only("post_run").pipeline_result.error.code == UsageLimitExceededError.code


@pytest.mark.parametrize("at", [*STOPPABLE, "on_pause_requested"])
@pytest.mark.parametrize("error", [ValueError("no"), PausedException("wait")])
def test_strict_hooks_end_the_run_with_any_error(strict, at, error):
    """§2.9."""
    told = Told(at, error)
    agent = fails if at == "on_step_failure" else echo
    result = strict.run(hooked(step("a", agent, fallback_step=step("spare")), ask(), hooks=[told]), 1)
    assert (result.run_status, result.error.type_name, result.error.code) == (
        "failed",
        type(error).__name__,
        "HOOK_FAILED",
    )
    assert told.names[-2:] == [at, "post_run"]


@pytest.mark.parametrize("at", ["pre_run", "pre_step", "post_step", "on_pause_requested", None])
def test_a_replay_calls_no_hook_and_decides_as_before(engine, at):
    """ADR 22: what a hook stopped is in the attempt's row."""
    told = Told(at, PipelineAbortSignal("enough"))
    fork = ParallelStep("fork", branches={"x": step("s"), "y": step("t")}, merge_strategy="no_merge")
    run = engine.run(hooked(fork, ask(), hooks=[told]), 1).run_id
    told.payloads.clear()
    stores = engine.stores
    recorded = (
        asked(stores).read_recording(run),
        asked(stores).read_notices(run),
        stores.reads.read_scopes(run),
        stores.reads.read_children(run),
    )
    assert (replay(*recorded).difference, told.names) == (None, [])


def ended_untold(engine, hook):
    engine.hook_calls.due = list  # no one tells anything yet
    run = engine.run(hooked(step("a"), hooks=[hook]), 1).run_id
    del engine.hook_calls.due
    return run


def lose(engine, room):
    """Have its process die under the one call that is owed, again than is allowed."""
    for _ in range(engine.settings.worker.max_lost + 1):
        [call] = engine.hook_calls.due()
        engine.stores.hook_calls.take(call, "local", room=room)


def test_a_call_next_to_others_that_end_every_worker_is_made(engine):
    """SYS-20, M-013: only a death that nothing else can have caused counts against it."""
    told = Told()
    run = ended_untold(engine, told)
    lose(engine, "shared")
    [call] = engine.hook_calls.due()
    with engine.attempts.isolation.gate.shared():  # other work of this process
        making = threading.Thread(target=engine.hook_calls.carry_out, args=(call,))
        making.start()
        making.join(0.05)
        assert "post_run" not in told.names
    making.join(5)
    assert (told.names.count("post_run"), engine.hook_calls.due()) == (1, [])
    assert "hook.lost" not in [event.name for event in engine.story(run)]


def test_a_call_that_ends_every_worker_is_given_up(engine):
    """A hook that kills its process must not do so forever; that it was given up is told."""
    told = Told()
    run = ended_untold(engine, told)
    lose(engine, "alone")
    [call] = engine.hook_calls.due()
    assert engine.hook_calls.carry_out(call)
    assert ("post_run" in told.names, engine.hook_calls.due()) == (False, [])
    [lost] = [event for event in engine.story(run) if event.name == "hook.lost"]
    assert (lost.level, lost.data) == ("error", {"payload": "post_run", "times": engine.settings.worker.max_lost + 1})


def test_a_worker_with_other_code_leaves_the_call_to_others(engine):
    """What it cannot load it does not take."""
    told = Told()
    engine.hook_calls.due = list
    engine.run(hooked(step("a"), hooks=[told]), 1)
    del engine.hook_calls.due
    [call] = engine.stores.hook_calls.pending("local", 10)
    with LocalEngine() as other:
        other.stores = engine.stores
        other.hook_calls._stores = engine.stores
        assert (other.hook_calls.due(), other.hook_calls.carry_out(call)) == ([], False)
    assert engine.hook_calls.carry_out(call)
