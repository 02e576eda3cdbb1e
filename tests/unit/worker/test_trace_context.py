"""The W3C trace context that a client gives reaches whatever its run sets going (SYS-20)."""

from __future__ import annotations

import pytest
from opentelemetry import propagate, trace

from flujo_client import ImportStep, Pipeline, Step, StepConfig, current_attempt
from flujo_worker.testing import LocalEngine

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ONCE, BEHIND = StepConfig(max_retries=0), StepConfig(execution_mode="background")


@pytest.fixture
def seen():
    return {}


@pytest.fixture
def look(seen):
    def look(data):
        info = current_attempt()
        seen[info.run_id, info.step] = info.trace_parent
        if data == "fail" and info.step == "last":
            raise ValueError("not yet")
        return data

    return look


def pipeline_of(look):
    """A branch, a child run, a run in the background, and a step that fails if it is told to."""
    steps = [
        Step.parallel("fan", {"a": Step("branch", look), "b": Step("other", look)}),
        Step("one", lambda _: "fail"),
        ImportStep("import", pipeline=Pipeline([Step("child", look)]), own_run=True),
        Step("later", look, config=BEHIND),
        Step("last", look, config=ONCE),
    ]
    return Pipeline(steps)


def test_every_attempt_of_every_run_below_has_it(seen, look):
    with LocalEngine() as engine:
        run = engine.enqueue(pipeline_of(look), "go", trace_parent=PARENT)
        engine.drain()
        engine.retry(run)
    steps = sorted(step for _, step in seen)
    assert steps == ["branch", "child", "last", "last", "later", "other"]
    assert len({run for run, _ in seen}) == 4
    assert set(seen.values()) == {PARENT}


def test_a_run_without_one_has_none(seen, look):
    with LocalEngine() as engine:
        engine.run(Pipeline([Step("only", look)]), "go")
    assert list(seen.values()) == [None]


def test_an_agent_goes_on_with_the_clients_trace():
    """The how-to of `docs/reference/trace.md`, with OpenTelemetry's own reader."""
    told = []

    def agent(data):
        parent = propagate.extract({"traceparent": current_attempt().trace_parent})
        told.append(trace.get_current_span(parent).get_span_context())
        return data

    with LocalEngine() as engine:
        engine.enqueue(Pipeline([Step("only", agent)]), "go", trace_parent=PARENT)
        engine.drain()
    [context] = told
    assert (trace.format_trace_id(context.trace_id), context.is_remote) == (PARENT[3:35], True)
