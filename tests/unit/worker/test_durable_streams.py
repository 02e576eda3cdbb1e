"""Streamed answers of durable agents: handlers see them as they come, and those on record once, whole."""

import asyncio
import time

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessEventStream
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_worker.agents.durability import FlujoDurability
from flujo_worker.testing import LocalEngine

PAUSE_S = 0.2
LIVE = ["PartStartEvent", "FinalResultEvent", "PartDeltaEvent", "PartDeltaEvent", "PartEndEvent"]


class Streams:
    """An agent that calls a tool and then says three words; its model is away once, before so many words. What handlers see is in `seen`."""

    def __init__(self, *, down_at=0):
        self.seen, self.asked, self.down_at = [], 0, down_at
        self.model = FunctionModel(stream_function=self.stream)

    async def stream(self, messages, info):
        self.asked += 1
        if not any(isinstance(each, ModelResponse) for each in messages):
            yield {0: DeltaToolCall("look", "{}", tool_call_id="c")}
            return
        down_at, self.down_at = self.down_at, None
        for number, word in enumerate(("one ", "two ", "three")):
            if number == down_at:
                raise ModelHTTPError(503, "function")
            yield word
            await asyncio.sleep(PAUSE_S)

    async def handler(self, ctx, events):
        async for event in events:
            self.seen.append((type(event).__name__, time.monotonic()))

    def agent(self, **rest):
        return Agent(self.model, name="streamer", tools=[look], **rest)

    def of_capability(self):
        durability = FlujoDurability(event_stream_handler=self.handler)
        return self.agent(capabilities=[durability])

    def of_agent(self):
        return self.agent(capabilities=[ProcessEventStream(self.handler), FlujoDurability()])

    def of_run(self):
        agent = self.agent(capabilities=[FlujoDurability()])

        async def talk(data: str) -> str:
            return (await agent.run(data, event_stream_handler=self.handler)).output

        return talk

    def by_stream(self):
        agent = self.agent(capabilities=[FlujoDurability()])

        async def talk(data: str) -> str:
            async with agent.run_stream(data) as result:
                words = []
                async for word in result.stream_text(delta=True, debounce_by=None):
                    words.append(word)
                    self.seen.append(("PartDeltaEvent", time.monotonic()))
                return "".join(words)

        return talk

    def names(self):
        return [name for name, _ in self.seen]


def look() -> str:
    return "seen"


def performed(agent):
    with LocalEngine() as engine:
        return engine.run(Pipeline([Step("talk", agent, config=StepConfig(max_retries=1))]), "go")


@pytest.mark.parametrize("given", ["of_capability", "of_agent", "of_run"])
def test_a_handler_sees_an_answer_as_it_comes_and_one_on_record_whole(given):
    streams = Streams()
    result = performed(getattr(streams, given)())
    assert (result.output, streams.asked) == ("one two three", 3), result.error
    assert streams.names()[-len(LIVE) :] == LIVE
    at = [when for name, when in streams.seen if name == "PartDeltaEvent"]
    assert at[-1] - at[-2] >= PAUSE_S / 2
    calls = [name for name in streams.names() if name == "FunctionToolCallEvent"]
    assert len(calls) == 2  # in each attempt, though the tool was called once
    starts = [name for name in streams.names() if name == "PartStartEvent"]
    assert len(starts) == 3  # the call as it came, the call on record, and the words


def test_a_run_can_be_streamed():
    streams = Streams(down_at=None)
    assert performed(streams.by_stream()).output == "one two three"
    at = [when for _, when in streams.seen]
    assert len(at) == 3
    assert at[2] - at[0] >= PAUSE_S  # of two pauses


def test_an_answer_that_broke_off_is_asked_for_again():
    streams = Streams(down_at=2)
    result = performed(streams.of_capability())
    assert (result.output, streams.asked) == ("one two three", 3), result.error
    assert streams.names().count("PartDeltaEvent") == 1 + 2
