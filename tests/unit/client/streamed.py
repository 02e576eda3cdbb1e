"""Runs whose streams are lists of events, as a reader gives them, and a client that knows them."""

import asyncio
from types import SimpleNamespace

from pydantic import TypeAdapter
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
)

from flujo_client.contract.stream import Cursor, StreamEvent
from flujo_client.errors import ClientError, RunNotFound

EVENT = TypeAdapter(AgentStreamEvent)
RUN = "run_1"


def at_a_step(step, attempt, *entries):
    """Events of an attempt: pairs of a kind and data, or of a kind and an event of pydantic-ai."""
    return [
        StreamEvent(kind, data if isinstance(data, dict) else EVENT.dump_python(data, mode="json"), step, "", attempt)
        for kind, data in entries
    ]


def text(*pieces, index=0):
    whole = "".join(pieces)
    start, *rest = pieces
    return [
        ("token", PartStartEvent(index=index, part=TextPart(start))),
        *(("token", PartDeltaEvent(index=index, delta=TextPartDelta(content_delta=each))) for each in rest),
        ("token", PartEndEvent(index=index, part=TextPart(whole))),
    ]


def thought(*pieces):
    start, *rest = pieces
    return [
        ("token", PartStartEvent(index=0, part=ThinkingPart(start))),
        *(("token", PartDeltaEvent(index=0, delta=ThinkingPartDelta(content_delta=each))) for each in rest),
        ("token", PartEndEvent(index=0, part=ThinkingPart("".join(pieces)))),
    ]


def call(name, call_id, *pieces):
    whole = ToolCallPart(name, "".join(pieces), call_id)
    return [
        ("token", PartStartEvent(index=1, part=ToolCallPart(name, "", call_id))),
        *(
            ("token", PartDeltaEvent(index=1, delta=ToolCallPartDelta(args_delta=each, tool_call_id=call_id)))
            for each in pieces
        ),
        ("token", PartEndEvent(index=1, part=whole)),
        ("tool_call", FunctionToolCallEvent(whole, args_valid=True)),
        ("tool_result", FunctionToolResultEvent(ToolReturnPart(name, {"found": 3}, call_id))),
    ]


def numbered(events, epoch=7):
    """Give events the cursors that they have in a stream."""
    return [
        StreamEvent(each.kind, each.data, each.step, each.address, each.attempt, str(Cursor(epoch, n)))
        for n, each in enumerate(events, start=1)
    ]


class FakeRun:
    """A run whose stream is known. `pause_s`: seconds before each event. `is_open`: nothing ends it. `error`: raised at once; `breaks`: at the end."""

    def __init__(self, events, *, pause_s=0.0, is_open=False, status="running", approvals=(), error=None, breaks=None):
        self.id, self.events, self.pause_s, self.is_open = RUN, events, pause_s, is_open
        self.error, self.breaks, self.asked, self.run_status = error, breaks, list(approvals), status
        self.readers = self.ended_readers = 0

    async def stream(self, after=None):
        self.readers += 1
        try:
            if self.error:
                raise self.error
            for event in self.events:
                if after is None or Cursor.parse(event.cursor) > Cursor.parse(after) or event.kind == "end":
                    await asyncio.sleep(self.pause_s)
                    yield event
            if self.breaks:
                raise self.breaks
            if self.is_open:
                await asyncio.sleep(3600)
        finally:
            self.ended_readers += 1

    async def status(self):
        return self.run_status

    async def approvals(self):
        return self.asked


class FakeClient:
    """A client of one run. `answers`: what was answered."""

    def __init__(self, run):
        self.run, self.answers = run, []
        self.settings = SimpleNamespace()

    async def get_run(self, run_id):
        if run_id != self.run.id:
            raise RunNotFound(f"no run {run_id}")
        return self.run


NO_STREAM = ClientError("run run_1 has no stream", suggestion="pass stream=True", code="NO_STREAM")
