"""An attempt, through the engine in one process: who is called how often, what is merged, and what an end says.

Each message is turned into bytes and back on the way, as between machines.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
from pydantic import BaseModel

from flujo_client import PluginOutcome, ValidationResult
from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Usage
from flujo_client.errors import AgentIOValidationError, NonRetryableError, PipelineAbortSignal, RunFailed
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step, StepConfig
from flujo_client.serial import dumps, loads
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.attempts.needs import Preparation
from flujo_worker.changed_code.code_registry import LoadedPipeline
from flujo_worker.errors import WireError
from flujo_worker.ports import Claim
from flujo_worker.runtime.attempt_run import charge
from flujo_worker.testing import LocalEngine
from tests.support.builders import enqueued
from tests.support.memory import asked

ROOMY = StepConfig(max_retries=3)


class Agent:
    """Counts its calls, and raises what it is told to, as often as it is told to."""

    def __init__(self, error=None, times=99, answer="out"):
        self.error, self.times, self.answer, self.calls, self.seen = error, times, answer, 0, []

    async def run(self, data, *, guidance=None):
        self.calls += 1
        self.seen.append(guidance)
        if self.error is not None and self.calls <= self.times:
            raise self.error
        return self.answer


class No:
    """A plugin, or a validator, that refuses."""

    calls = 0

    def validate(self, output, *, context=None):
        self.calls += 1
        return PluginOutcome(success=False, feedback="not like this")


def never(output):
    return False, "never good enough"


def run_one(engine, agent, *, config=ROOMY, value="in", context=None, **rest):
    return engine.run(Pipeline([Step("s", agent, config=config, **rest)]), value, context=context)


def categories(engine, result):
    return [each.fault.category for each in engine.history(result.run_id) if each.fault]


def test_loading_a_pipelines_code_does_not_count_as_the_steps_time(engine, monkeypatch):
    """The first attempt after a worker's start imports the code."""
    prepare = Preparation.prepare

    async def slowly(preparation, attempt):
        time.sleep(0.3)  # noqa: ASYNC251 - the engine for tests has no loop here
        await prepare(preparation, attempt)

    monkeypatch.setattr(Preparation, "prepare", slowly)
    began = time.monotonic()
    latency_s = run_one(engine, Agent()).step_history[0].latency_s
    assert latency_s <= time.monotonic() - began - 0.3


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_an_agents_failure_is_tried_again_as_often_as_allowed(engine, retries):
    """M-405: 1 + max_retries calls, each a separate attempt (M-004); the category is on each (M-461)."""
    agent = Agent(ValueError("Internal error"))
    result = run_one(engine, agent, config=StepConfig(max_retries=retries))
    assert agent.calls == retries + 1
    assert [each.number for each in engine.history(result.run_id)] == list(range(1, retries + 2))
    assert categories(engine, result) == ["agent"] * (retries + 1)
    assert result.step_history[0].feedback == "Agent execution failed with ValueError: Internal error"


def test_an_agent_that_recovers_has_as_many_attempts_as_it_took(engine):
    """M-004: three attempts, 1, 2 and 3."""
    agent = Agent(ValueError("no"), times=2)
    result = run_one(engine, agent)
    assert (result.status, result.output, agent.calls) == ("completed", "out", 3)
    assert [(each.number, each.status) for each in engine.history(result.run_id)] == [
        (1, "failed"),
        (2, "failed"),
        (3, "succeeded"),
    ]
    assert result.step_history[0].attempts == 3


def test_a_refusing_validator_ends_the_step_at_once(engine):
    """M-288: one call, and the feedback names the validator."""
    agent = Agent()
    result = run_one(engine, agent, validators=[never])
    assert (agent.calls, categories(engine, result)) == (1, ["validation"])
    assert "never: never good enough" in result.step_history[0].feedback


def test_a_refusing_plugin_ends_the_step_at_once(engine):
    """C-01."""
    agent, plugin = Agent(), No()
    result = run_one(engine, agent, plugins=[plugin])
    assert (agent.calls, plugin.calls, categories(engine, result)) == (1, 1, ["plugin"])
    assert "No: not like this" in result.step_history[0].feedback


def raises(output):
    raise KeyError("a bug")


@pytest.mark.parametrize(("where", "category"), [("validators", "validation"), ("plugins", "plugin")])
def test_a_judge_that_raises_ends_the_step_at_once(engine, where, category):
    """Its failure stays in its own domain (C-02)."""
    agent, judge = Agent(), type("Judge", (), {"validate": staticmethod(raises)})()
    result = run_one(engine, agent, **{where: [judge]})
    assert (agent.calls, categories(engine, result)) == (1, [category])
    assert "KeyError" in result.step_history[0].feedback


def test_a_non_retryable_error_is_not_tried_again(engine):
    agent = Agent(NonRetryableError("give up"))
    result = run_one(engine, agent)
    assert (agent.calls, categories(engine, result)) == (1, ["agent"])


def test_an_abort_ends_the_run_and_reaches_the_client_as_itself(engine):
    """C-23."""
    agent = Agent(PipelineAbortSignal("enough"))
    result = run_one(engine, agent)
    assert (agent.calls, result.status) == (1, "failed")
    assert engine.history(result.run_id)[0].reason == "aborted"
    with pytest.raises(PipelineAbortSignal, match="enough"):
        result.raise_for_status()


@pytest.mark.parametrize("is_sync", [True, False])
def test_an_agent_that_is_too_slow_is_an_agents_failure(engine, is_sync):
    if is_sync:
        agent = lambda data: time.sleep(0.2)  # noqa: E731
    else:

        async def agent(data):
            await asyncio.sleep(60)

    result = run_one(engine, agent, config=StepConfig(max_retries=1, timeout_s=0.02))
    assert categories(engine, result) == ["agent", "agent"]
    assert result.step_history[0].feedback.endswith("TimeoutError: no answer within 0.02 s")


async def cancels_itself(data):
    raise asyncio.CancelledError


async def exits(data):
    sys.exit(3)


def exits_in_a_thread(data):
    sys.exit(3)


@pytest.mark.parametrize("agent", [cancels_itself, exits, exits_in_a_thread])
def test_an_agent_cannot_end_more_than_its_attempt(engine, agent):
    """Neither the worker's event loop nor the run depends on it."""
    result = run_one(engine, agent, config=StepConfig(max_retries=1))
    assert categories(engine, result) == ["agent", "agent"]
    assert run_one(engine, Agent()).success


def test_the_next_step_does_not_run_after_a_failure(engine):
    agent = Agent()
    result = engine.run(Pipeline([Step("a", Agent(NonRetryableError("no"))), Step("b", agent)]), "in")
    assert agent.calls == 0
    with pytest.raises(RunFailed, match="NonRetryableError: no"):
        result.raise_for_status()


def test_every_attempt_but_the_first_is_told_what_was_wrong(engine):
    agent = Agent(AgentIOValidationError("no"), times=2)
    run_one(engine, agent)
    assert agent.seen == [None, "no", "no"]


def plain(data):
    return f"plain {data}"


async def awaited(data):
    await asyncio.sleep(0)
    return f"awaited {data}"


class Callable:
    def __call__(self, data, *, context=None, temperature=None):
        return f"{data} at {temperature} with {type(context).__name__}"


@pytest.mark.parametrize(
    ("agent", "output"),
    [
        (plain, "plain in"),
        (awaited, "awaited in"),
        (partial(awaited), "awaited in"),
        (Callable(), "in at 0.5 with PipelineContext"),
        ("tests.support.builders:echo", "in"),
    ],
    ids=["sync", "async", "returns an awaitable", "an object with options", "a reference"],
)
def test_any_agent_will_do(engine, agent, output):
    """An option goes to whom takes it, and to no one else (M-021…M-024)."""
    result = run_one(engine, agent, config=StepConfig(temperature=0.5), context={})
    assert result.output == output


def test_there_is_no_context_where_the_run_has_none(engine):
    """M-023."""
    result = run_one(engine, Callable())
    assert result.output == "in at None with NoneType"
    assert result.final_pipeline_context is None


def test_sync_agents_do_not_hold_up_the_others(engine):
    """The event loop never waits for them."""
    threads = []

    def agent(data):
        threads.append(threading.current_thread().name)
        return data

    run_one(engine, agent)
    assert threads[0].startswith("flujo-user")


def test_sync_agents_that_hang_leave_room_for_the_next():
    """Nothing ends a thread: what its attempt's timeout left behind must not fail the runs that come after it."""
    wake = threading.Event()
    hanging = Pipeline([Step("hang", lambda data: wake.wait(30), config=StepConfig(max_retries=0, timeout_s=0.05))])
    with LocalEngine(Settings(worker={"concurrency": 2})) as engine:
        stuck = [engine.run(hanging, "in") for _ in range(4)]
        try:
            assert engine.run(Pipeline([Step("s", plain, config=StepConfig(timeout_s=5))]), "in").success
        finally:
            wake.set()
    assert [result.error.type_name for result in stuck] == ["TimeoutError"] * 4


class Book(BaseModel):
    total: int = 0
    note: str = ""
    inner: dict[str, int] = {}


def test_an_output_updates_the_context(engine):
    result = run_one(engine, lambda _: {"total": 3}, context=Book(note="kept"), updates_context=True)
    assert result.final_pipeline_context == Book(total=3, note="kept")


def test_an_output_sinks_into_the_context(engine):
    result = run_one(engine, lambda _: 7, context=Book(), sink_to="inner.seven")
    assert result.final_pipeline_context.inner == {"seven": 7}


def test_an_output_that_does_not_fit_the_context_fails_the_step_without_another_call(engine):
    agent = Agent(answer={"total": "many"})
    result = run_one(engine, agent, context=Book(), updates_context=True)
    assert (agent.calls, result.final_pipeline_context) == (1, Book())
    assert "step 's': the output does not fit Book: total" in result.step_history[0].feedback


def test_what_a_failed_attempt_did_to_its_context_is_gone(engine):
    """M-006."""

    def scribble(data, *, context):
        context.total = 99
        raise ValueError("after all")

    result = run_one(engine, scribble, context=Book(note="kept"))
    assert result.final_pipeline_context == Book(note="kept")


def test_an_output_that_cannot_travel_names_its_path(engine):
    """M-005: one call, for trying again would give the same."""
    agent = Agent(answer={"rows": [1, {"handle": object()}]})
    result = run_one(engine, agent)
    assert (agent.calls, categories(engine, result)) == (1, ["system"])
    assert "output of step 's'.rows[1].handle" in result.step_history[0].feedback


def test_a_context_that_cannot_travel_names_its_path(engine):
    def spoil(data, *, context):
        context.scratchpad["socket"] = object()
        return data

    result = run_one(engine, spoil, context={})
    assert "context.scratchpad.socket" in result.step_history[0].feedback


def test_a_snapshot_that_is_too_large_fails_the_step(engine):
    with LocalEngine(Settings(limits={"snapshot_inline_bytes": 1000, "snapshot_max_bytes": 2000})) as small:
        result = run_one(small, lambda data: data * 1000, value="long")
    assert result.error.code == "SNAPSHOT_TOO_LARGE"
    assert "at most 2,000 can be sent" in result.error.message


def test_values_above_the_inline_limit_are_kept_once_and_pointed_at():
    """M-005: the message carries the digest, the worker fetches the value."""
    noise = "".join(chr(33 + number * 7919 % 90) for number in range(4000))
    with LocalEngine(Settings(limits={"snapshot_inline_bytes": 100})) as engine:
        pipeline = Pipeline([Step("a", lambda data: data + "!", sink_to="note"), Step("b", len)])
        run_id = engine.enqueue(pipeline, noise, context=Book(note=noise))
        assert all(len(message) < 1500 for message in engine.bus)
        engine.deliver(engine.bus.popleft())
        assert all(len(message) < 1500 for message in engine.bus)
        engine.drain()
        result = engine.result(run_id)
    assert (result.output, result.final_pipeline_context.note) == (4001, noise + "!")


def test_a_snapshot_that_was_lost_fails_the_step():
    with LocalEngine(Settings(limits={"snapshot_inline_bytes": 10})) as engine:
        run_id = engine.enqueue(Pipeline([Step("a", len)]), "x" * 100)
        engine.stores.tables.blobs.clear()
        engine.drain()
        [attempt] = engine.history(run_id)
    assert (attempt.fault.code, attempt.fault.category) == ("SNAPSHOT_LOST", "system")


def test_what_was_spent_is_added_up_over_the_attempts(engine):
    def pay(data):
        return AgentAnswer("out", Usage(10, 5, 1, 0.25))

    result = engine.run(Pipeline([Step("a", pay), Step("b", pay)]), "in")
    assert (result.total_tokens, result.total_cost_usd) == (30, 0.5)
    assert [(each.token_counts, each.cost_usd) for each in result.step_history] == [(15, 0.25), (15, 0.25)]


def test_what_a_failed_call_had_spent_is_recorded(engine):
    def fail(_data):
        error = ValueError("no")
        charge(error, Usage(10, 5, 1, 0.25))
        raise error

    result = run_one(engine, fail)
    assert result.total_tokens == 60


def test_a_second_delivery_does_nothing(engine):
    """M-013."""
    agent = Agent()
    engine.enqueue(Pipeline([Step("s", agent)]), "in")
    message = engine.bus[0]
    assert engine.deliver(message) == "merged"
    assert engine.deliver(message) == "ended"
    assert agent.calls == 1


def test_a_run_of_other_code_is_parked_with_its_reason(engine):
    """The worker's code gives another fingerprint, and the pipeline does not let the run continue under it."""
    pipeline = Pipeline([Step("s", plain)], on_change="park")
    run_id = engine.enqueue(pipeline, "in")
    engine.attempts.catalog._entries.clear()
    engine.attempts.catalog._load = lambda *_: _entry(Pipeline([Step("s", awaited)]))
    assert engine.deliver(engine.bus.popleft()) == "parked"
    run = engine.stores.reads.read_run(run_id)
    assert run.status == "parked"
    assert "step 's': agent.callable changed from" in run.reason
    assert "this worker's code has fingerprint" in run.reason


def test_the_reason_a_run_is_parked_for_hides_secrets(engine, tmp_path, monkeypatch):
    """Modules that connect when they are imported say where to, with the password."""
    (tmp_path / "connecting.py").write_text("raise OSError('no route to postgresql://app:hunter2@db/app')")
    monkeypatch.syspath_prepend(tmp_path)
    first = enqueued(Pipeline([Step("s", plain)])).first
    unreachable = replace(first, ticket=replace(first.ticket, reference="connecting:pipeline"))
    run_id = engine.stores.client.record(replace(enqueued(Pipeline([Step("s", plain)])), first=unreachable))
    assert engine.deliver(dumps(unreachable.to_wire())) == "parked"
    run = engine.stores.reads.read_run(run_id)
    assert "raised OSError: no route to postgresql://app:***@db/app" in run.reason
    assert run.parked["kind"] == "import"
    assert "raised OSError: no route to postgresql://app:***@db/app" in run.parked["what"]


def test_a_cancelled_run_calls_no_one(engine):
    agent = Agent()
    run_id = engine.enqueue(Pipeline([Step("s", agent)]), "in")
    asked(engine.stores).request_cancel(run_id)
    assert engine.deliver(engine.bus.popleft()) == "stopped"
    assert agent.calls == 0


def _entry(pipeline):
    return LoadedPipeline(pipeline, compile_plan(pipeline), {step.name: step for step in pipeline.steps})


def test_a_validators_verdict_may_come_in_four_ways(engine):
    ways = [lambda _: True, lambda _: (True, ""), lambda _: ValidationResult(is_valid=True)]
    assert run_one(engine, Agent(), validators=ways).success


def test_a_message_of_a_plan_that_the_run_does_not_go_by_is_dropped_and_sent_again(engine):
    """ADR 37: it was sent before the run came under its present plan."""
    agent = Agent()
    run = engine.enqueue(Pipeline([Step("s", agent)]), "in")
    envelope = Envelope.from_wire(loads(engine.bus.popleft()))
    engine.stores.backlog.mark_sent({envelope.key: 0.0})
    early = replace(envelope, ticket=replace(envelope.ticket, fingerprint="0" * 64))
    assert engine.deliver(dumps(early.to_wire())) == "moved"
    assert agent.calls == 0
    engine.drain()
    assert (agent.calls, engine.result(run).output) == (1, "out")


def test_a_message_that_names_another_pipeline_is_refused_and_harms_no_one(engine):
    """M-014: without signing keys anyone can write a body; its run continues by the real one."""
    agent = Agent()
    run = engine.enqueue(Pipeline([Step("s", agent)]), "in")
    envelope = Envelope.from_wire(loads(engine.bus[0]))
    forged = replace(envelope, ticket=replace(envelope.ticket, reference="other:pipeline"))
    with pytest.raises(WireError, match="does not belong to the pipeline"):
        engine.coordinator.effects.run(engine.attempts.deliver(forged))
    assert agent.calls == 0
    engine.drain()
    assert (agent.calls, engine.result(run).output) == (1, "out")


def test_a_message_that_overtakes_its_sweeps_commit_is_not_dropped(engine, monkeypatch):
    """M-013: a sweep sends what was lost before it commits. A worker that may not judge yet sees the dead worker's row until then."""
    early, claim = [Claim(refusal="busy")] * 3, engine.stores.attempts.claim
    monkeypatch.setattr(
        engine.stores.attempts, "claim", lambda *args, **rest: early.pop() if early else claim(*args, **rest)
    )
    agent = Agent()
    assert not engine.lease.may_judge()
    assert run_one(engine, agent).success
    assert (agent.calls, early) == (1, [])


def test_a_claim_whose_outcome_was_refused_acts_no_second_time(engine):
    """After a failover the scope may be another one than the claim has seen; the lease releases the claim, and the next one has another id."""
    calls = []

    def act(data):
        calls.append(data)
        next(iter(engine.stores.tables.scopes.values())).version += 1
        return data

    run = engine.enqueue(Pipeline([Step("s", act)]), "in")
    envelope = engine.bus.popleft()
    assert engine.deliver(envelope) == "stale"
    [attempt] = engine.history(run)
    assert attempt.status == "running"
    assert engine.deliver(envelope) == "busy"
    assert calls == ["in"]
