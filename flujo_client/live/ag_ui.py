"""A run in AG-UI 1.0: each response is a run of that protocol, valid on its own, whenever the browser joins."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from ag_ui import core
from ag_ui.core import BaseEvent, Message, RunAgentInput
from ag_ui.encoder import EventEncoder
from pydantic_ai.ui import NativeEvent
from pydantic_ai.ui.ag_ui import AGUIEventStream

from flujo_client.api import approvals
from flujo_client.contract.approval import Approval
from flujo_client.contract.stream import Cursor, StreamEvent
from flujo_client.errors import FlujoError, ResumeError
from flujo_client.live.encoders import ENCODED, Encoders, NumberedIds, try_of
from flujo_client.live.host import BEAT_S, Opened
from flujo_client.live.sse import SETTLED_S

PAST_S: Final = (0.5, 5.0)
"""Seconds for which the past is gathered into a snapshot, for a browser without a cursor and for one with."""
PARTS: Final = (
    ("message_id", core.TextMessageStartEvent, core.TextMessageContentEvent, core.TextMessageEndEvent),
    ("message_id", core.ReasoningStartEvent, None, core.ReasoningEndEvent),
    ("message_id", core.ReasoningMessageStartEvent, core.ReasoningMessageContentEvent, core.ReasoningMessageEndEvent),
    ("tool_call_id", core.ToolCallStartEvent, core.ToolCallArgsEvent, core.ToolCallEndEvent),
)
_ENCODER: Final = EventEncoder()
M = TypeVar("M", bound=Message)


async def events(opened: Opened, given: RunAgentInput | None) -> AsyncIterator[str]:
    """Yield a run of AG-UI as server-sent events. The messages of the browser's input are kept, and its `resume` answers questions."""
    run_id = opened.handle.id
    ids = (given.thread_id, given.run_id) if given else (run_id, run_id)
    state = AgUiState(run_id, given.messages if given else ())
    yield _encoded(core.RunStartedEvent(thread_id=ids[0], run_id=ids[1], protocol_version=core.PROTOCOL_VERSION))
    has_joined = False
    try:
        for entry in (given and given.resume) or ():
            await _answer(opened, entry)
        cursor = await _gather(opened, state)
        has_joined = True
        for each in state.joined():
            yield _encoded(each, cursor)
        async for text in _follow(opened, state):
            yield text
        last = _last(state, ids, is_new=given is not None and given.protocol_version is not None)
    except FlujoError as error:
        last = core.RunErrorEvent(message=error.message, code=error.error_code)
    for each in [*(state.close() if has_joined else ()), last]:
        yield _encoded(each)


async def _gather(opened: Opened, state: AgUiState) -> str:
    """Apply the events up to the browser's cursor, or up to now; return the cursor of the last one."""
    target = None if opened.after is None else Cursor.parse(opened.after)
    until, at = time.monotonic() + PAST_S[target is not None], ""
    while time.monotonic() < until and (event := await opened.next(SETTLED_S)) is not None:
        await state.apply(event)
        at = event.cursor
        if target is not None and Cursor.parse(at) >= target:
            break
    return at


async def _follow(opened: Opened, state: AgUiState) -> AsyncIterator[str]:
    """Yield what follows, until the end or until the run is paused for a person."""
    async for event in opened.events():
        if event is not None:
            yield "".join([_encoded(each, event.cursor) for each in await state.apply(event)])
            continue
        yield ""
        if time.monotonic() > state.look_at:
            questions = await opened.handle.approvals()
            state.look_at = 0 if questions else time.monotonic() + BEAT_S
            if questions and await opened.handle.status() == "paused":
                state.questions = questions
                return


def _last(state: AgUiState, ids: tuple[str, str], *, is_new: bool) -> BaseEvent:
    """Return the last event; only browsers that are `is_new` know cancelled runs."""
    end = state.end or {}
    match end.get("status"):
        case "succeeded":
            outcome: Any = core.RunFinishedSuccessOutcome()
        case "cancelled" if is_new:
            outcome = core.RunFinishedCancelledOutcome()
        case None if state.questions:
            outcome = core.RunFinishedInterruptOutcome(interrupts=[_interrupt(each) for each in state.questions])
        case None:
            return core.RunErrorEvent(message="this server stops; join the run again", code="server_stops")
        case status:
            return core.RunErrorEvent(message=str(end.get("error") or f"the run is {status}"), code=status)
    return core.RunFinishedEvent(thread_id=ids[0], run_id=ids[1], outcome=outcome, result=end.get("output"))


def _interrupt(question: Approval) -> core.Interrupt:
    is_yes_or_no = (question.schema or {}).get("type") == "boolean"
    return core.Interrupt(
        id=question.key,
        reason="confirmation" if is_yes_or_no else "input_required",
        message=question.message,
        response_schema=question.schema,
        expires_at=question.expires_at.isoformat() if question.expires_at else None,
        metadata={"step": question.step, "address": question.address},
    )


async def _answer(opened: Opened, entry: Any) -> None:
    """Answer a question. `cancelled` is False where the question takes a boolean, and does nothing where it is closed."""
    question = next((each for each in await opened.handle.approvals() if each.key == entry.interrupt_id), None)
    value = entry.payload
    if entry.status == "cancelled":
        if question is None:
            return
        if (question.schema or {}).get("type") != "boolean":
            what = "this question needs an answer"
            raise ResumeError(what, suggestion="answer it, or cancel the run", code="ANSWER_REFUSED")
        value = False
    run_id, key = (question.run_id, question.key) if question else (opened.handle.id, entry.interrupt_id)
    options: Any = {"actor": opened.user.name}
    client = opened.live.client
    await client.perform(approvals.resume(client.settings, run_id, value, options, key=key))


def _encoded(event: BaseEvent, cursor: str = "") -> str:
    event.timestamp = event.timestamp or int(time.time() * 1000)
    return (f"id: {cursor}\n" if cursor else "") + _ENCODER.encode(event)


class AgUiState:
    """Turns a run's events into AG-UI's, and keeps the messages that a browser has then, to bring one that joins up to date.

    Of the browser's messages, those of other runs are kept.
    """

    def __init__(self, run_id: str, others: Sequence[Message] = ()) -> None:
        own = f"{run_id}/"
        self._others = [each for each in others if not each.id.startswith(own)]
        self._void = {each.id for each in others if each.id.startswith(own) and each.role == "reasoning"}
        self.look_at, self.questions = 0.0, list[Approval]()
        self.end: Mapping[str, Any] | None = None
        self._encoders = Encoders[BaseEvent](lambda name: _Numbered(own + name), PARTS)
        self._steps: dict[str, BaseEvent] = {}
        self._messages: dict[str, tuple[str, Message]] = {}
        """By id, each message with the name of its attempt."""
        self._calls: dict[str, core.FunctionCall] = {}

    async def apply(self, event: StreamEvent) -> list[BaseEvent]:
        """Return an event of the run as AG-UI's."""
        name = try_of(event.address, event.step, event.attempt)
        place = "/".join(filter(None, (event.address, event.step)))
        match event.kind:
            case "step_start" if place not in self._steps:
                self._steps[place] = core.StepStartedEvent(step_name=place)
                return [self._steps[place]]
            case "step_end":
                self.look_at = 0  # the next step may ask a person, which is no event
                changed = [self._snapshot()] if self._settle(name, event.data.get("output")) else []
                return [*self._encoders.close(name), *changed, *self._end_step(place)]
            case "withdrawn":
                self._keep(lambda attempt: attempt != name)
                return [*self._encoders.close(name), self._snapshot(), *self._end_step(place)]
            case "gap":
                return self._encoders.close()
            case "snapshot":
                return [self._restore(event.data.get("steps", ()))]
            case "log" | "progress":
                value = {"step": event.step, "address": event.address, **event.data}
                return [core.CustomEvent(name=f"flujo.{event.kind}", value=value)]
            case "question":
                self.look_at = 0
            case "end":
                self.end = event.data
            case kind if kind in ENCODED:
                return [self._noted(name, each) for each in await self._encoders.encode(name, event.data)]
        return []

    def joined(self) -> list[BaseEvent]:
        """Return what brings a browser up to date: all messages, and the starts of what is open."""
        return [self._snapshot(), *self._steps.values(), *self._encoders.reopened()]

    def close(self) -> list[BaseEvent]:
        """End all that is open."""
        steps = [each for place in reversed([*self._steps]) for each in self._end_step(place)]
        return [*self._encoders.close(), *steps]

    def _end_step(self, place: str) -> list[BaseEvent]:
        return [core.StepFinishedEvent(step_name=place)] if self._steps.pop(place, None) else []

    def _noted(self, attempt: str, event: BaseEvent) -> BaseEvent:
        """Return an event after applying it to the messages as browsers do."""
        match event:
            case core.TextMessageStartEvent(message_id=at):
                self._message(attempt, core.AssistantMessage(id=at))
            case core.ReasoningMessageStartEvent(message_id=at):
                self._message(attempt, core.ReasoningMessage(id=at, content=""))
            case core.TextMessageContentEvent(message_id=at) | core.ReasoningMessageContentEvent(message_id=at):
                message = cast("core.AssistantMessage | core.ReasoningMessage", self._messages[at][1])
                message.content = (message.content or "") + event.delta
            case core.ToolCallStartEvent(tool_call_id=call, tool_call_name=name):
                caller = self._message(attempt, core.AssistantMessage(id=event.parent_message_id or call))
                self._calls[call] = core.FunctionCall(name=name, arguments="")
                caller.tool_calls = [*(caller.tool_calls or ()), core.ToolCall(id=call, function=self._calls[call])]
            case core.ToolCallArgsEvent(tool_call_id=call):
                self._calls[call].arguments += event.delta
            case core.ToolCallResultEvent(message_id=at, tool_call_id=call):
                self._message(attempt, core.ToolMessage(id=at, content=str(event.content), tool_call_id=call))
            case core.ActivitySnapshotEvent(message_id=at, activity_type=sort):
                self._message(attempt, core.ActivityMessage(id=at, activity_type=sort, content=event.content))
        return event

    def _message(self, attempt: str, new: M) -> M:
        return cast("M", self._messages.setdefault(new.id, (attempt, new))[1])

    def _snapshot(self) -> BaseEvent:
        """Return all messages. A browser keeps its thoughts if the snapshot has none: then void ones are in it, empty."""
        own: list[Message] = [message.model_copy(deep=True) for _, message in self._messages.values()]
        if not any(each.role == "reasoning" for each in own):
            own += [core.ReasoningMessage(id=at, content="") for at in sorted(self._void)]
        return core.MessagesSnapshotEvent(messages=[*self._others, *own])

    def _keep(self, is_kept: Callable[[str], bool]) -> None:
        """Forget the messages of other attempts."""
        gone = {at: each for at, (attempt, each) in self._messages.items() if not is_kept(attempt)}
        self._void |= {at for at, each in gone.items() if each.role == "reasoning"}
        self._messages = {at: each for at, each in self._messages.items() if at not in gone}

    def _settle(self, attempt: str, output: Any, *, is_new: bool = False) -> bool:
        """Make a text output the last message of its attempt, with `is_new` also where it has none; return whether a message changed."""
        said = [each for name, each in self._messages.values() if name == attempt and each.role == "assistant"]
        own = [each for each in said if each.content]
        if not isinstance(output, str) or not (own or is_new) or (own and own[-1].content == output):
            return False
        last = own[-1] if own else self._message(attempt, core.AssistantMessage(id=f"{attempt}.output"))
        last.content = output
        return True

    def _restore(self, steps: Sequence[dict[str, Any]]) -> BaseEvent:
        """Return the messages after a gap: those of attempts that neither run nor succeeded are void."""
        known = {try_of(each["address"], each["step"], each["attempt"]): each.get("output") for each in steps}
        self._keep(known.__contains__)
        for name, output in known.items():
            self._settle(name, output, is_new=True)
        return self._snapshot()


class _Numbered(NumberedIds, AGUIEventStream[Any, Any]):
    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix, self._thoughts = prefix, dict[str, str]()

    async def handle_event(self, event: NativeEvent) -> AsyncIterator[BaseEvent]:
        """Yield AG-UI's events for one of pydantic-ai; the random ids of thoughts become the same for every reader."""
        async for each in super().handle_event(event):
            if isinstance(each, core.ReasoningStartEvent):
                self._thoughts[each.message_id] = f"{self.prefix}.thought.{len(self._thoughts) + 1}"
            for name in ("message_id", "entity_id"):
                if (at := getattr(each, name, None)) in self._thoughts:
                    setattr(each, name, self._thoughts[at])
            yield each
