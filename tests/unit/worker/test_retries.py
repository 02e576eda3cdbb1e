"""Runs that are begun again at a step, through the engine in one process."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from flujo_client import Pipeline, PipelineContext, Settings, Step, StepConfig, UsageLimits
from flujo_client.contract.outcome import Usage
from flujo_client.contract.trace import build_trace
from flujo_client.errors import RetryError, UsageLimitExceededError
from flujo_client.pipeline.parallel import MergeStrategy
from flujo_client.pipeline.router import DynamicParallelRouterStep
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.testing import LocalEngine

ONCE = StepConfig(max_retries=0)


class Service:
    """Out of order until it is mended; counts its calls."""

    def __init__(self) -> None:
        self.calls, self.is_mended = 0, False

    def __call__(self, data: str) -> str:
        self.calls += 1
        if not self.is_mended:
            raise ValueError("out of order")
        return f"{data} sent"


class Counter:
    """Gives what it was given, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, data: str) -> str:
        self.calls += 1
        return data.upper()


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def counter():
    return Counter()


@pytest.fixture
def pipeline(service, counter):
    both = {"i": Step("i", str.title), "j": Step("j", str.lower)}
    steps = [
        Step("write", counter, sink_to="scratchpad.text"),
        Step.parallel("check", both),
        Step("join", lambda checked: "+".join(checked.values())),
        Step("send", service, config=ONCE),
    ]
    return Pipeline(steps, context_model=PipelineContext)


def test_a_mended_step_continues_from_where_it_failed(engine, pipeline, service, counter):
    """What was done before is neither done again nor paid again, and is in the result all the same."""
    failed = engine.run(pipeline, "hello")
    service.is_mended = True
    result = engine.retry(failed.run_id)
    assert (failed.success, result.success, result.output) == (False, True, "Hello+hello sent")
    assert (counter.calls, service.calls) == (1, 2)
    assert [step.name for step in result.step_history] == ["write", "check", "join", "send"]
    assert [step.metadata_.get("taken_over_from") for step in result.step_history] == [*(3 * [failed.run_id]), None]
    assert [step.output for step in result.step_history[:3]] == [step.output for step in failed.step_history[:3]]


def test_the_context_is_as_the_step_found_it_and_knows_its_run(engine, pipeline, service):
    failed = engine.run(pipeline, "hello")
    service.is_mended = True
    result = engine.retry(failed.run_id)
    context = result.final_pipeline_context
    assert (context.run_id, context.initial_prompt, context.scratchpad["text"]) == (result.run_id, "hello", "HELLO")
    assert context.step_outputs["join"] == "Hello+hello"


def test_it_begins_at_a_container_too(engine, pipeline, service):
    failed = engine.run(pipeline, "hello")
    result = engine.retry(failed.run_id, "check")
    assert [step.name for step in result.step_history] == ["write", "check", "join", "send"]
    assert [len(step.step_history) for step in result.step_history[:2]] == [0, 2]


def test_the_trace_tells_where_it_comes_from(engine, pipeline):
    failed = engine.run(pipeline, "hello")
    forked = engine.fork(failed.run_id, "join")
    stores = engine.stores
    trace = build_trace(
        stores.reads.read_run(forked),
        stores.reads.read_attempts(forked),
        stores.reads.read_scopes(forked),
        stores.reads.read_events(forked),
    )
    assert (trace.attributes["forked_from"], trace.attributes["from_step"]) == (failed.run_id, "join")
    assert [child.status for child in trace.children] == ["succeeded", "succeeded", "ready"]


def test_a_step_inside_a_container_is_none_to_begin_at(engine, pipeline):
    failed = engine.run(pipeline, "hello")
    with pytest.raises(RetryError, match="no top-level step 'i'"):
        engine.retry(failed.run_id, "i")


def test_a_child_run_is_retried_with_its_parent(engine, service):
    inner = Pipeline([Step("send", service, config=ONCE)], name="inner")
    failed = engine.run(Pipeline([Step("write", str.upper), inner.as_step("inner", own_run=True)]), "hello")
    [child] = engine.children(failed.run_id)
    with pytest.raises(RetryError) as refused:
        engine.retry(child.id, "send")
    service.is_mended = True
    assert refused.value.error_code == "CHILD_RUN"
    assert engine.retry(failed.run_id).output == "HELLO sent"


class Notes(BaseModel):
    """A context that only agents writes."""

    seen: list[str] = []


def choose(data, *, context: Notes):
    context.seen.append("chosen")
    return ["i"]


def test_what_a_routers_agent_wrote_is_there_behind_it(service, engine):
    """It is written before the branches begin, and they merge nothing."""
    router = DynamicParallelRouterStep(
        "route", router_agent=choose, branches={"i": Step("i", str.upper)}, merge_strategy=MergeStrategy.NO_MERGE
    )
    failed = engine.run(Pipeline([router, Step("send", service, config=ONCE)], context_model=Notes), "hello")
    service.is_mended = True
    result = engine.retry(failed.run_id)
    assert result.final_pipeline_context == failed.final_pipeline_context == Notes(seen=["chosen"])


def spend(data):
    return AgentAnswer(data, Usage(6, 4, 1, 0.1))


def spending(service):
    return Pipeline([Step("think", spend), Step("send", service, config=ONCE), Step("talk", spend)], name="spending")


def test_what_was_spent_before_is_not_charged_again(engine, service):
    """A run's limit counts again: the old run has spent all of its ten tokens, and the new one may spend ten."""
    failed = engine.run(spending(service), "hello", limits=UsageLimits(total_tokens_limit=10))
    service.is_mended = True
    result = engine.retry(failed.run_id)
    assert (failed.total_tokens, result.total_tokens, result.run_status) == (10, 10, "succeeded")
    assert [step.token_counts for step in result.step_history] == [0, 0, 10]


def test_a_tenants_budget_holds_over_both(service):
    service.is_mended, budgets = True, {"tenant": {"acme": {"total_tokens_limit": 25}}}
    with LocalEngine(Settings.model_validate({"budgets": budgets})) as engine:
        first = engine.run(spending(service), "hello", tenant="acme")
        again = engine.retry(first.run_id, "think")
    assert (first.total_tokens, first.run_status) == (20, "succeeded")
    assert again.run_status == "failed"
    with pytest.raises(UsageLimitExceededError):
        again.raise_for_status()


def test_large_values_are_pointed_at_and_found(service):
    steps = [Step("write", str.upper, sink_to="scratchpad.text"), Step("send", service, config=ONCE)]
    with LocalEngine(Settings(limits={"snapshot_inline_bytes": 50})) as engine:
        failed = engine.run(Pipeline(steps, context_model=PipelineContext), "hello " * 50)
        service.is_mended = True
        result = engine.retry(failed.run_id)
    assert result.output == "HELLO " * 50 + " sent"
    assert result.final_pipeline_context.run_id == result.run_id


def test_a_fork_continues_with_the_present_code(engine):
    """The issue's `flujo runs fork`: any run, with the context as it was at that step."""
    old = Pipeline([Step("a", lambda data: f"{data} a"), Step("b", lambda data: f"{data} old")])
    run = engine.enqueue(old, "in")
    engine.drain()
    new = Pipeline([Step("b", lambda data: f"{data} new"), Step("c", lambda data: f"{data} c")])
    forked = engine.fork(run, "b", onto=new)
    engine.drain()
    assert engine.result(forked).output == "in a new c"
    assert engine.result(run).output == "in a old"
    assert engine.stores.reads.read_run(forked).forked_from == run


def test_a_fork_at_a_step_that_the_present_code_lacks_is_refused(engine):
    run = engine.enqueue(Pipeline([Step("a", lambda data: data), Step("b", lambda data: data)]), "in")
    engine.drain()
    with pytest.raises(RetryError, match="the present code of 'pipeline' has no top-level step 'b'") as refused:
        engine.fork(run, "b", onto=Pipeline([Step("a", len), Step("renamed", len)]))
    assert "begin at one of these: 'a', 'renamed'" in str(refused.value)
