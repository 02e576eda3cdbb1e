"""A streamed agent's answers are judged, counted and paid for as any other's: over real HTTP, once whole and once in pieces."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessEventStream
from pydantic_ai.messages import AgentStreamEvent, ModelResponse, TextPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel

from flujo_client import Pipeline, Settings, Step, StepConfig
from flujo_client.config.models import Log
from flujo_client.config.run_settings import RunSettings
from flujo_worker import LocalEngine, make_agent_async
from tests.support.openai_server import OpenAIServer, Said


class City(BaseModel):
    name: str


WHOLE = '{"name": "Oslo"}'
SAID: dict[str, tuple[Said, dict[str, Any]]] = {
    "text": (Said("The city is Oslo."), {}),
    "type": (Said(arguments=WHOLE), {"output_type": City}),
    "type with AROS": (Said(WHOLE), {"output_type": City, "processing": {"aop": "full"}}),
    "cut": (Said("The city is", finish_reason="length"), {}),
    "filtered": (Said("The city is", finish_reason="content_filter"), {}),
    "empty": (Said(""), {}),
    "refused": (Said("slow down", status=429), {}),
    "away": (Said("no", status=503), {}),
    "broken off": (Said("The city is Oslo.", drops=True), {}),
    "not JSON": (Said(body=b"<html>busy</html>", content_type="text/html"), {}),
    "invalid": (Said("Oslo"), {"output_type": City, "processing": {"aop": "full", "structured_output": "openai_json"}}),
}


class Recorder(list[tuple[str, Any]]):
    """What an attempt streams."""

    def writer(self, envelope, fence):
        return self

    def put(self, kind, data):
        self.append((kind, data))


def ran(agent, monkeypatch, *, streams, processing=None, durable=False):
    """Run one step; return its attempt, its events, and what it has streamed."""
    recorder = Recorder()
    with LocalEngine(Settings(log=Log(prompts="preview"))) as engine, monkeypatch.context() as patch:
        if streams:
            patch.setattr(RunSettings, "table", lambda _: {"stream": "all"})
            patch.setattr(engine.attempts, "_streams", lambda: recorder)
        step = Step("ask", agent, StepConfig(max_retries=0, durable=durable), processing=processing)
        run = engine.enqueue(Pipeline([step]), "Which city?")
        engine.drain()
        [attempt] = engine.history(run)
        return attempt, engine.story(run), recorder


def asked(said, monkeypatch, *, streams, processing=None, durable=False, **options):
    with OpenAIServer([said]) as server:
        agent = make_agent_async(OpenAIChatModel("gpt-4o", provider=server.provider()), "Answer.", **options)
        found = ran(agent, monkeypatch, streams=streams, processing=processing, durable=durable)
        assert [bool(body.get("stream")) for body in server.bodies] == [streams] * len(server.bodies)
        return found


def judged(attempt, story):
    fault = attempt.fault
    told = [(each.name, each.level) for each in story if each.name.startswith(("agent.", "aros.", "output.", "step."))]
    return (
        attempt.status,
        fault and (fault.code, fault.type_name, fault.retryable),
        (attempt.tokens, attempt.cost_usd),
        told,
    )


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("name", SAID)
def test_a_streamed_answer_is_judged_and_paid_for_as_a_whole_one(name, durable, monkeypatch):
    said, options = SAID[name]
    whole, streamed = (asked(said, monkeypatch, streams=each, durable=durable, **options) for each in (False, True))
    assert judged(*streamed[:2]) == judged(*whole[:2])
    kinds = [kind for kind, _ in streamed[2]]
    assert (kinds[0], kinds[-1]) == ("step_start", "step_end" if whole[0].fault is None else "withdrawn")
    for kind, data in streamed[2]:
        if kind in ("token", "tool_call", "tool_result"):
            TypeAdapter(AgentStreamEvent).validate_python(data)


def test_a_model_that_cannot_stream_is_streamed_whole(monkeypatch):
    agent = Agent(FunctionModel(lambda messages, info: ModelResponse([TextPart("Oslo")])))
    attempt, _, recorder = ran(agent, monkeypatch, streams=True)
    assert attempt.fault is None
    [start] = [data for kind, data in recorder if data.get("event_kind") == "part_start"]
    assert start["part"]["content"] == "Oslo"


@pytest.mark.parametrize("durable", [False, True])
def test_an_agent_that_streams_itself_is_streamed_in_pieces_too(durable, monkeypatch):
    async def tell(messages, info):
        for word in ("one ", "two ", "three"):
            yield word

    async def own(ctx, events):
        seen.extend([event.event_kind async for event in events])

    seen = []
    agent = Agent(FunctionModel(stream_function=tell), name="teller", capabilities=[ProcessEventStream(own)])
    attempt, _, recorder = ran(agent, monkeypatch, streams=True, durable=durable)
    assert attempt.fault is None
    assert seen == [data["event_kind"] for kind, data in recorder if kind == "token"]
    assert seen.count("part_delta") == 2


def test_calls_of_tools_are_streamed_with_what_they_give(monkeypatch):
    async def tell(messages, info):
        if len(messages) == 1:
            yield {0: DeltaToolCall("look", '{"at": "sky"}', tool_call_id="c")}
        else:
            yield "done"

    def look(at: str) -> dict[str, str]:
        return {at: "blue"}

    agent = Agent(FunctionModel(stream_function=tell), tools=[look])
    _, _, recorder = ran(agent, monkeypatch, streams=True)
    called = [(kind, data["part"]) for kind, data in recorder if data.get("event_kind", "").startswith("function_")]
    assert [kind for kind, _ in called] == ["tool_call", "tool_result"]
    assert {part["tool_call_id"] for _, part in called} == {"c"}
    assert json.loads(called[1][1]["content"]) == {"sky": "blue"}
