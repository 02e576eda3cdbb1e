"""The W3C trace context that a client gives reaches whatever its run sets going (SYS-20)."""

import pytest
from opentelemetry import trace

from flujo_client import ImportStep, Pipeline, Step, StepConfig, current_attempt
from flujo_worker.testing import LocalEngine
from tests.support.page_module import page_module

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


def test_every_attempt_of_every_run_below_has_it(engine, seen, look):
    run = engine.enqueue(pipeline_of(look), "go", trace_parent=PARENT)
    engine.drain()
    engine.retry(run)
    steps = sorted(step for _, step in seen)
    assert steps == ["branch", "child", "last", "last", "later", "other"]
    assert len({run for run, _ in seen}) == 4
    assert set(seen.values()) == {PARENT}


def test_a_run_without_one_has_none(engine, seen, look):
    engine.run(Pipeline([Step("only", look)]), "go")
    assert list(seen.values()) == [None]


def test_an_agent_continues_with_the_clients_trace(monkeypatch):
    """The example of `docs/reference/trace.md`, with OpenTelemetry's own reader."""
    tracing, spans = page_module("reference/trace.md", "tracing.py"), []

    class Tracer(trace.NoOpTracer):
        def start_as_current_span(self, name, context=None, **rest):
            spans.append((name, trace.get_current_span(context).get_span_context()))
            return super().start_as_current_span(name, context, **rest)

    monkeypatch.setattr(tracing, "tracer", Tracer())
    with LocalEngine() as engine:
        engine.enqueue(tracing.pipeline, "o-17", trace_parent=PARENT)
        engine.enqueue(tracing.pipeline, "o-18")
        engine.drain()
    [(name, joined), (_, alone)] = spans
    assert (name, trace.format_trace_id(joined.trace_id), joined.is_remote) == ("look_up", PARENT[3:35], True)
    assert not alone.is_valid
