"""The trace of a run, from the caller's span to the request of a model, through OpenTelemetry's own context."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.models.openai import OpenAIChatModel

from flujo_client import Pipeline, Step, current_attempt
from flujo_client.trace_context import current_trace_parent, own_trace_parent, span_id
from flujo_worker.testing import LocalEngine
from flujo_worker.traces.live import Sampling, follow
from tests.support.openai_server import OpenAIServer, Said

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def server():
    with OpenAIServer([Said("fine")]) as server:
        yield server


@pytest.fixture
def tracing():
    follow(Sampling())
    yield
    follow(None)


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


def sent(server, pipeline, **options):
    """Run a pipeline; return its run and the header of its model's request."""
    with LocalEngine() as engine:
        run = engine.run(pipeline, "go", **options)
    assert run.run_status == "succeeded", run.error
    return run, server.requests[-1].headers.get("traceparent")


def asking(server, **agent):
    return Pipeline([Step("ask", Agent(OpenAIChatModel("gpt-4o", provider=server.provider()), **agent))])


@pytest.mark.parametrize("parent", [PARENT, None])
def test_a_request_of_a_model_names_the_attempts_span(server, tracing, parent):
    run, header = sent(server, asking(server), trace_parent=parent)
    expected = (parent or own_trace_parent(run.run_id))[3:35]
    assert header == f"00-{expected}-{span_id(f'{run.run_id}::ask:1')}-01"


def test_without_a_collector_nothing_is_sent(server):
    assert sent(server, asking(server))[1] is None


def test_other_headers_stay(server, tracing):
    settings = {"extra_headers": {"x-team": "legal"}}
    _, header = sent(server, asking(server, model_settings=settings))
    assert header is not None
    assert server.requests[-1].headers["x-team"] == "legal"


def test_a_callers_decision_not_to_sample_goes_on(server, tracing):
    _, header = sent(server, asking(server), trace_parent=f"{PARENT[:-2]}00")
    assert header.endswith("-00")


def test_live_spans_of_pydantic_ai_are_below_the_attempt(server, tracing, provider, spans):
    instrumented = Instrumentation(settings=InstrumentationSettings(tracer_provider=provider))
    run, _ = sent(server, asking(server, capabilities=[instrumented]), trace_parent=PARENT)
    [agent] = [span for span in spans.get_finished_spans() if span.name.startswith("invoke_agent")]
    assert f"{agent.context.trace_id:032x}" == PARENT[3:35]
    assert f"{agent.parent.span_id:016x}" == span_id(f"{run.run_id}::ask:1")


def test_the_callers_current_span_is_the_parent(provider):
    seen = []
    pipeline = Pipeline([Step("look", lambda _: seen.append(current_attempt().trace_parent))])
    with LocalEngine() as engine, provider.get_tracer("acme").start_as_current_span("order") as span:
        engine.run(pipeline, "go", trace_parent=current_trace_parent())
    context = span.get_span_context()
    assert seen == [f"00-{context.trace_id:032x}-{context.span_id:016x}-01"]
    assert trace.get_current_span() is trace.INVALID_SPAN
    assert current_trace_parent() is None
