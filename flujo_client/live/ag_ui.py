"""A run as AG-UI 1.0 wants it: each answer is a run of that protocol, valid on its own, whenever the browser joins."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from ag_ui import core
from ag_ui.core import BaseEvent, Message, RunAgentInput
from ag_ui.encoder import EventEncoder
from pydantic_ai.ui import NativeEvent
from pydantic_ai.ui.ag_ui import AGUIEventStream

from flujo_client.api import approvals
from flujo_client.contract.approval import Approval
from flujo_client.contract.stream import Cursor, StreamEvent
from flujo_client.errors import FlujoError, ResumeError
from flujo_client.live.encoders import SPOKEN, Encoders, NumberedIds, try_of
from flujo_client.live.host import BEAT_S, Opened
from flujo_client.live.sse import SETTLED_S
from flujo_client.live.transcript import Transcript

PAST_S: Final = (0.5, 5.0)
"""Seconds for which the past is gathered into a snapshot, for a browser without a cursor and for one with."""
PARTS: Final = (
    ("message_id", core.TextMessageStartEvent, core.TextMessageContentEvent, core.TextMessageEndEvent),
    ("message_id", core.ReasoningStartEvent, None, core.ReasoningEndEvent),
    ("message_id", core.ReasoningMessageStartEvent, core.ReasoningMessageContentEvent, core.ReasoningMessageEndEvent),
    ("tool_call_id", core.ToolCallStartEvent, core.ToolCallArgsEvent, core.ToolCallEndEvent),
)
_ENCODER: Final = EventEncoder()


class _Numbered(NumberedIds, AGUIEventStream[Any, Any]):
    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix, self._thoughts = prefix, dict[str, str]()

    async def handle_event(self, event: NativeEvent) -> AsyncIterator[BaseEvent]:
        """Yield what an event is; thoughts, whose ids are drawn at random, get ids that are the same for every reader."""
        async for each in super().handle_event(event):
            if isinstance(each, core.ReasoningStartEvent):
                self._thoughts[each.message_id] = f"{self.prefix}.thought.{len(self._thoughts) + 1}"
            for name in ("message_id", "entity_id"):
                if (at := getattr(each, name, None)) in self._thoughts:
                    setattr(each, name, self._thoughts[at])
            yield each


class Telling:
    """Tells a run in AG-UI's events, from its beginning.

    Args:
        run_id: the run's.
        others: messages of the conversation that are not of this run.
    """

    def __init__(self, run_id: str, others: Sequence[Message] = ()) -> None:
        own = f"{run_id}/"
        thoughts = [each.id for each in others if each.id.startswith(own) and each.role == "reasoning"]
        self.transcript = Transcript([each for each in others if not each.id.startswith(own)], thoughts)
        self.asks_at, self.asked = 0.0, list[Approval]()
        self.end: Mapping[str, Any] | None = None
        self._encoders = Encoders[BaseEvent](lambda name: _Numbered(own + name), PARTS)
        self._steps: dict[str, BaseEvent] = {}

    async def tell(self, event: StreamEvent) -> list[BaseEvent]:
        """Return what an event of the run is in AG-UI."""
        name, place = try_of(event), "/".join(filter(None, (event.address, event.step)))
        match event.kind:
            case "step_start" if place not in self._steps:
                self._steps[place] = core.StepStartedEvent(step_name=place)
                return [self._steps[place]]
            case "step_end":
                self.asks_at = 0  # what follows may ask a person, which no event tells
                return [*self._encoders.close(name), *self._settle(name, event.data), *self._end_step(place)]
            case "withdrawn":
                return [*self._encoders.close(name), self.transcript.withdraw(name), *self._end_step(place)]
            case "gap":
                return self._encoders.close()
            case "snapshot":
                return [self._restore(event.data.get("steps", ()))]
            case "log" | "progress":
                said = {"step": event.step, "address": event.address, **event.data}
                return [core.CustomEvent(name=f"flujo.{event.kind}", value=said)]
            case "question":
                self.asks_at = 0
            case "end":
                self.end = event.data
            case kind if kind in SPOKEN:
                return [self.transcript.take(name, each) for each in await self._encoders.encode(event)]
        return []

    def rejoined(self) -> list[BaseEvent]:
        """Return what brings a browser up to date: all messages, and the beginnings of what is open."""
        return [self.transcript.snapshot(), *self._steps.values(), *self._encoders.reopened()]

    def closed(self) -> list[BaseEvent]:
        """End all that is open."""
        steps = [each for place in reversed([*self._steps]) for each in self._end_step(place)]
        return [*self._encoders.close(), *steps]

    def _end_step(self, place: str) -> list[BaseEvent]:
        return [core.StepFinishedEvent(step_name=place)] if self._steps.pop(place, None) else []

    def _settle(self, name: str, ended: Any) -> list[BaseEvent]:
        output = ended.get("output")
        is_changed = isinstance(output, str) and self.transcript.settle(name, output)
        return [self.transcript.snapshot()] if is_changed else []

    def _restore(self, steps: Sequence[dict[str, Any]]) -> BaseEvent:
        """Return the messages after a gap: those of attempts that neither run nor succeeded are void."""
        known = {
            try_of(StreamEvent("step_end", {}, each["step"], each["address"], each["attempt"])): each for each in steps
        }
        for name in [each for each in self.transcript.speakers() if each not in known]:
            self.transcript.withdraw(name)
        for name, each in known.items():
            if isinstance(each.get("output"), str):
                self.transcript.settle(name, each["output"], is_new=True)
        return self.transcript.snapshot()


async def events(opened: Opened, said: RunAgentInput | None) -> AsyncIterator[str]:
    """Yield a run of AG-UI, as server-sent events.

    Args:
        opened: the stream, from its beginning.
        said: what the browser sent: its messages are kept, and its `resume` answers questions.
    """
    run_id = opened.handle.id
    ids = (said.thread_id, said.run_id) if said else (run_id, run_id)
    telling = Telling(run_id, said.messages if said else ())
    yield _written(core.RunStartedEvent(thread_id=ids[0], run_id=ids[1], protocol_version=core.PROTOCOL_VERSION))
    has_joined = False
    try:
        for entry in (said and said.resume) or ():
            await _answer(opened, entry)
        cursor = await _gather(opened, telling)
        has_joined = True
        for each in telling.rejoined():
            yield _written(each, cursor)
        async for told in _told(opened, telling):
            yield told
        last = _last(telling, ids, is_new=said is not None and said.protocol_version is not None)
    except FlujoError as error:
        last = core.RunErrorEvent(message=error.message, code=error.error_code)
    for each in [*(telling.closed() if has_joined else ()), last]:
        yield _written(each)


async def _gather(opened: Opened, telling: Telling) -> str:
    """Read up to the cursor that the browser has, or up to now; return the cursor of the last event."""
    target = None if opened.after is None else Cursor.parse(opened.after)
    until, at = time.monotonic() + PAST_S[target is not None], ""
    while time.monotonic() < until and (event := await opened.next(SETTLED_S)) is not None:
        await telling.tell(event)
        at = event.cursor
        if target is not None and Cursor.parse(at) >= target:
            break
    return at


async def _told(opened: Opened, telling: Telling) -> AsyncIterator[str]:
    async for event in opened.events():
        if event is not None:
            yield "".join([_written(each, event.cursor) for each in await telling.tell(event)])
            continue
        yield ""
        if time.monotonic() > telling.asks_at:
            asked = await opened.handle.approvals()
            telling.asks_at = 0 if asked else time.monotonic() + BEAT_S
            if asked and await opened.handle.status() == "paused":
                telling.asked = asked
                return


def _last(telling: Telling, ids: tuple[str, str], *, is_new: bool) -> BaseEvent:
    """Return how a run of AG-UI ends; browsers that are not `is_new` know no cancelled runs."""
    end = telling.end or {}
    match end.get("status"):
        case "succeeded":
            outcome: Any = core.RunFinishedSuccessOutcome()
        case "cancelled" if is_new:
            outcome = core.RunFinishedCancelledOutcome()
        case None if telling.asked:
            outcome = core.RunFinishedInterruptOutcome(interrupts=[_interrupt(each) for each in telling.asked])
        case None:
            return core.RunErrorEvent(message="this server stops; join the run again", code="server_stops")
        case status:
            return core.RunErrorEvent(message=str(end.get("error") or f"the run is {status}"), code=status)
    return core.RunFinishedEvent(thread_id=ids[0], run_id=ids[1], outcome=outcome, result=end.get("output"))


def _interrupt(asked: Approval) -> core.Interrupt:
    is_yes_or_no = (asked.schema or {}).get("type") == "boolean"
    return core.Interrupt(
        id=asked.key,
        reason="confirmation" if is_yes_or_no else "input_required",
        message=asked.message,
        response_schema=asked.schema,
        expires_at=asked.expires_at.isoformat() if asked.expires_at else None,
        metadata={"step": asked.step, "address": asked.address},
    )


async def _answer(opened: Opened, entry: Any) -> None:
    """Answer a question. `cancelled` is a no where the question takes one, and nothing where it is closed already."""
    asked = next((each for each in await opened.handle.approvals() if each.key == entry.interrupt_id), None)
    value = entry.payload
    if entry.status == "cancelled":
        if asked is None:
            return
        if (asked.schema or {}).get("type") != "boolean":
            raise ResumeError(
                "this question needs an answer", suggestion="answer it, or cancel the run", code="ANSWER_REFUSED"
            )
        value = False
    run_id, key = (asked.run_id, asked.key) if asked else (opened.handle.id, entry.interrupt_id)
    options: Any = {"actor": opened.user.name}
    client = opened.live.client
    await client.perform(approvals.resume(client.settings, run_id, value, options, key=key))


def _written(event: BaseEvent, cursor: str = "") -> str:
    event.timestamp = event.timestamp or int(time.time() * 1000)
    return (f"id: {cursor}\n" if cursor else "") + _ENCODER.encode(event)
