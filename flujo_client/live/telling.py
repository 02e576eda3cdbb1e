"""Tell a run in AG-UI's events, and keep its messages: from these a browser that joins is brought up to date."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from ag_ui import core
from ag_ui.core import BaseEvent, Message
from pydantic_ai.ui import NativeEvent
from pydantic_ai.ui.ag_ui import AGUIEventStream

from flujo_client.contract.approval import Approval
from flujo_client.contract.stream import StreamEvent
from flujo_client.live.encoders import SPOKEN, Encoders, NumberedIds, try_of

PARTS: Final = (
    ("message_id", core.TextMessageStartEvent, core.TextMessageContentEvent, core.TextMessageEndEvent),
    ("message_id", core.ReasoningStartEvent, None, core.ReasoningEndEvent),
    ("message_id", core.ReasoningMessageStartEvent, core.ReasoningMessageContentEvent, core.ReasoningMessageEndEvent),
    ("tool_call_id", core.ToolCallStartEvent, core.ToolCallArgsEvent, core.ToolCallEndEvent),
)
M = TypeVar("M", bound=Message)


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
        others: the browser's messages. Those that are not of this run are kept.
    """

    def __init__(self, run_id: str, others: Sequence[Message] = ()) -> None:
        own = f"{run_id}/"
        self._others = [each for each in others if not each.id.startswith(own)]
        self._void = {each.id for each in others if each.id.startswith(own) and each.role == "reasoning"}
        self.asks_at, self.asked = 0.0, list[Approval]()
        self.end: Mapping[str, Any] | None = None
        self._encoders = Encoders[BaseEvent](lambda name: _Numbered(own + name), PARTS)
        self._steps: dict[str, BaseEvent] = {}
        self._said: dict[str, tuple[str, Message]] = {}
        """By id, the messages and the attempts that say them."""
        self._calls: dict[str, core.FunctionCall] = {}

    async def tell(self, event: StreamEvent) -> list[BaseEvent]:
        """Return what an event of the run is in AG-UI."""
        name = try_of(event.address, event.step, event.attempt)
        place = "/".join(filter(None, (event.address, event.step)))
        match event.kind:
            case "step_start" if place not in self._steps:
                self._steps[place] = core.StepStartedEvent(step_name=place)
                return [self._steps[place]]
            case "step_end":
                self.asks_at = 0  # what follows may ask a person, which no event tells
                changed = [self._snapshot()] if self._settle(name, event.data.get("output")) else []
                return [*self._encoders.close(name), *changed, *self._end_step(place)]
            case "withdrawn":
                self._keep(lambda by: by != name)
                return [*self._encoders.close(name), self._snapshot(), *self._end_step(place)]
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
                return [self._noted(name, each) for each in await self._encoders.encode(name, event.data)]
        return []

    def rejoined(self) -> list[BaseEvent]:
        """Return what brings a browser up to date: all messages, and the beginnings of what is open."""
        return [self._snapshot(), *self._steps.values(), *self._encoders.reopened()]

    def closed(self) -> list[BaseEvent]:
        """End all that is open."""
        steps = [each for place in reversed([*self._steps]) for each in self._end_step(place)]
        return [*self._encoders.close(), *steps]

    def _end_step(self, place: str) -> list[BaseEvent]:
        return [core.StepFinishedEvent(step_name=place)] if self._steps.pop(place, None) else []

    def _noted(self, by: str, event: BaseEvent) -> BaseEvent:
        """Return an event of an attempt, after applying it to the messages as browsers do."""
        match event:
            case core.TextMessageStartEvent(message_id=at):
                self._message(by, core.AssistantMessage(id=at))
            case core.ReasoningMessageStartEvent(message_id=at):
                self._message(by, core.ReasoningMessage(id=at, content=""))
            case core.TextMessageContentEvent(message_id=at) | core.ReasoningMessageContentEvent(message_id=at):
                message = cast("core.AssistantMessage | core.ReasoningMessage", self._said[at][1])
                message.content = (message.content or "") + event.delta
            case core.ToolCallStartEvent(tool_call_id=call, tool_call_name=name):
                caller = self._message(by, core.AssistantMessage(id=event.parent_message_id or call))
                self._calls[call] = core.FunctionCall(name=name, arguments="")
                caller.tool_calls = [*(caller.tool_calls or ()), core.ToolCall(id=call, function=self._calls[call])]
            case core.ToolCallArgsEvent(tool_call_id=call):
                self._calls[call].arguments += event.delta
            case core.ToolCallResultEvent(message_id=at, tool_call_id=call):
                self._message(by, core.ToolMessage(id=at, content=str(event.content), tool_call_id=call))
            case core.ActivitySnapshotEvent(message_id=at, activity_type=sort):
                self._message(by, core.ActivityMessage(id=at, activity_type=sort, content=event.content))
        return event

    def _message(self, by: str, new: M) -> M:
        return cast("M", self._said.setdefault(new.id, (by, new))[1])

    def _snapshot(self) -> BaseEvent:
        """Return all messages. A browser keeps its thoughts if there are none among them: void ones are then, empty."""
        own: list[Message] = [message.model_copy(deep=True) for _, message in self._said.values()]
        if not any(each.role == "reasoning" for each in own):
            own += [core.ReasoningMessage(id=at, content="") for at in sorted(self._void)]
        return core.MessagesSnapshotEvent(messages=[*self._others, *own])

    def _keep(self, is_kept: Callable[[str], bool]) -> None:
        """Forget what other attempts have said."""
        self._void |= {at for at, (by, said) in self._said.items() if not is_kept(by) and said.role == "reasoning"}
        self._said = {at: said for at, said in self._said.items() if is_kept(said[0])}

    def _settle(self, by: str, output: Any, *, is_new: bool = False) -> bool:
        """Let the last message of an attempt, or with `is_new` another one, have its output as text; return whether that changes any."""
        own = [said for name, said in self._said.values() if name == by and said.role == "assistant" and said.content]
        if not isinstance(output, str) or not (own or is_new) or (own and own[-1].content == output):
            return False
        last = own[-1] if own else self._message(by, core.AssistantMessage(id=f"{by}.output"))
        last.content = output
        return True

    def _restore(self, steps: Sequence[dict[str, Any]]) -> BaseEvent:
        """Return the messages after a gap: those of attempts that neither run nor succeeded are void."""
        known = {try_of(each["address"], each["step"], each["attempt"]): each.get("output") for each in steps}
        self._keep(known.__contains__)
        for name, output in known.items():
            self._settle(name, output, is_new=True)
        return self._snapshot()
