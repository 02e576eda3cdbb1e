"""What is told of durable calls: each once in events, spans and metrics, and to breakers, however often it is replayed."""

from collections import Counter

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.usage import RequestUsage

from flujo_client import Pipeline, Settings, Step, StepConfig
from flujo_worker.agents import AgentTool
from flujo_worker.runtime.units_met import meet, meeting_units
from flujo_worker.testing import LocalEngine

DURABLE = StepConfig(durable=True, max_retries=3, accept_finish_reasons=["length"])


class Research:
    """An agent of four turns: five tools at once, an agent as a tool, one more tool, an answer. What it does besides is done at a turn, or in a tool."""

    def __init__(self, **besides):
        self.besides = {name: list(acts) for name, acts in besides.items()}
        self.sub_agent = Agent(FunctionModel(self.sub), name="helper", tools=[self.look])
        self.agent = Agent(
            FunctionModel(self.answer, model_name="large"),
            name="researcher",
            tools=[self.look, AgentTool(self.sub_agent).as_tool()],
        )

    def disturb(self, name):
        if acts := self.besides.get(name):
            acts.pop()()

    def answer(self, messages, info):
        turn = sum(isinstance(each, ModelResponse) for each in messages)
        self.disturb(f"turn_{turn}")
        calls = [
            [("look", {"place": n}) for n in range(5)],
            [("run_helper", {"task": "help"})],
            [("look", {"place": 6})],
        ]
        if turn == len(calls):
            return ModelResponse([TextPart("done")], usage=RequestUsage(input_tokens=10))
        parts = [ToolCallPart(name, given, tool_call_id=f"{turn}.{n}") for n, (name, given) in enumerate(calls[turn])]
        cut = {"finish_reason": "length"} if turn == 0 else {}
        return ModelResponse(parts, usage=RequestUsage(input_tokens=10), **cut)

    def sub(self, messages, info):
        if len(messages) > 1:
            return ModelResponse([TextPart("helped")])
        return ModelResponse([ToolCallPart("look", {"place": 5}, tool_call_id="c")])

    def look(self, place: int) -> int:
        self.disturb(f"place_{place}")
        return place

    def run(self, engine):
        result = engine.run(Pipeline([Step("research", self.agent, config=DURABLE)]), "bees")
        assert result.output == "done", result.error
        return result


def down():
    raise ModelHTTPError(503, "large", "overloaded")


def broken():
    raise ConnectionError("the tool's service is away")


def events(engine, result):
    named = ("agent.prompt", "agent.request", "agent.tool", "agent.system", "agent_tool.called", "output.cut")
    return Counter(each.name for each in engine.story(result.run_id) if each.name in named)


def undisturbed():
    with LocalEngine() as engine:
        return events(engine, Research().run(engine))


@pytest.mark.parametrize(
    "where", [{"turn_1": [down]}, {"turn_3": [down]}, {"place_3": [broken]}, {"turn_2": [down], "place_6": [broken]}]
)
def test_events_of_a_call_are_stored_with_the_attempt_that_made_it(where):
    """Those of an attempt that failed are stored, so its calls are not told again; a call that failed is, when it is made again."""
    expected, again = undisturbed(), sum(name.startswith("turn") for name in where)
    research = Research(**where)
    with LocalEngine() as engine:
        found = events(engine, research.run(engine))
    assert found["agent.request"] == expected["agent.request"]
    assert found["agent_tool.called"] == expected["agent_tool.called"] == 1
    assert found["output.cut"] == expected["output.cut"] == 1
    assert found["agent.tool"] == expected["agent.tool"] + ("place_3" in where or "place_6" in where)
    assert found["agent.system"] == expected["agent.system"]
    assert again <= found["agent.prompt"] - expected["agent.prompt"] <= again + 5


def instrumented(research):
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    settings = InstrumentationSettings(tracer_provider=provider, meter_provider=MeterProvider([reader]))
    research.agent = Agent(
        research.agent.model,
        name="researcher",
        tools=[research.look, AgentTool(research.sub_agent).as_tool()],
        capabilities=[Instrumentation(settings=settings)],
    )
    return exporter, reader


def test_spans_and_metrics_of_calls_come_once():
    research = Research(turn_3=[down])
    exporter, reader = instrumented(research)
    with LocalEngine() as engine:
        research.run(engine)
    spans = Counter(each.name for each in exporter.get_finished_spans())
    assert spans["chat large"] == 5, spans  # four, and that which failed
    assert spans["execute_tool look"] == 6, spans
    assert spans["invoke_agent researcher"] == 2, spans
    [metrics] = reader.get_metrics_data().resource_metrics
    tokens = sum(
        point.sum
        for scope in metrics.scope_metrics
        for metric in scope.metrics
        if metric.name == "gen_ai.client.token.usage"
        for point in metric.data.data_points
        if point.attributes["gen_ai.token.type"] == "input"
    )
    assert tokens == 4 * 10


def test_a_breaker_hears_of_new_calls_only():
    """A tool that fails again and again says nothing of the model where all requests are on record."""
    with LocalEngine(Settings.model_validate({"breakers": {"failures": 2}})) as engine:
        result = Research(place_6=[down] * 3).run(engine)
        assert not [each for each in engine.story(result.run_id) if each.name.startswith("flujo.breaker")]


def test_requests_of_an_agent_as_a_tool_are_not_those_of_its_caller():
    with meeting_units(is_call=True) as caller:
        meet("replayed", is_request=True)
        with meeting_units(is_call=True) as tool:
            meet("asked", is_request=True)
    assert caller.has_asked_no_model
    assert not tool.has_asked_no_model
    assert caller.origins == {"replayed", "asked"}
