"""What has been said so far, as AG-UI's messages, and what is open: from this a browser that joins is brought up to date."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ag_ui.core import (
    ActivityMessage,
    ActivitySnapshotEvent,
    AssistantMessage,
    BaseEvent,
    FunctionCall,
    Message,
    MessagesSnapshotEvent,
    ReasoningEndEvent,
    ReasoningMessage,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCall,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
)


@dataclass(slots=True)
class _Said:
    """A message.

    Attributes:
        by: the attempt that says it.
        role: as AG-UI calls it.
        text: its pieces.
        calls: the tools that it calls, by the ids of the calls: the name, and the pieces of the arguments.
        of: the id of the call that it is the result of.
        shown: an activity, as it is.
    """

    by: str
    role: str
    text: list[str] = field(default_factory=list)
    calls: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    of: str = ""
    shown: ActivitySnapshotEvent | None = None


@dataclass(frozen=True, slots=True)
class _Open:
    by: str
    start: BaseEvent
    end: BaseEvent
    text: list[str]


_ENDS: Final[Mapping[type[BaseEvent], str]] = {
    TextMessageEndEvent: "text",
    ReasoningMessageEndEvent: "thought",
    ReasoningEndEvent: "span",
    ToolCallEndEvent: "call",
}
_CONTENTS: Final[Mapping[type[BaseEvent], str]] = {
    TextMessageContentEvent: "text",
    ReasoningMessageContentEvent: "thought",
    ToolCallArgsEvent: "call",
}


class Transcript:
    """The messages of a run.

    Args:
        others: messages of the conversation that are not of this run.
        thoughts: ids of this run's thoughts that the browser has.
    """

    def __init__(self, others: Sequence[Message] = (), thoughts: Iterable[str] = ()) -> None:
        self._others, self._void = others, {*thoughts}
        self._said: dict[str, _Said] = {}
        self._open: dict[tuple[str, str], _Open] = {}

    def take(self, by: str, event: BaseEvent) -> bool:
        """Take note of an event of an attempt; return False for one that continues or ends what is not open, which no browser may get."""
        given: Any = event
        if kind := _ENDS.get(type(event)):
            return self._open.pop((kind, _id_of(event)), None) is not None
        if kind := _CONTENTS.get(type(event)):
            begun = self._open.get((kind, _id_of(event)))
            if begun is not None:
                begun.text.append(given.delta)
            return begun is not None
        if isinstance(event, ToolCallResultEvent):
            self._said[event.message_id] = _Said(by, "tool", [str(event.content)], of=event.tool_call_id)
        elif isinstance(event, ActivitySnapshotEvent):
            self._said[event.message_id] = _Said(by, "activity", shown=event)
        else:
            self._begin(by, event)
        return True

    def _begin(self, by: str, event: BaseEvent) -> None:
        match event:
            case TextMessageStartEvent(message_id=at):
                said = self._said.setdefault(at, _Said(by, "assistant"))
                self._open["text", at] = _Open(by, event, TextMessageEndEvent(message_id=at), said.text)
            case ReasoningStartEvent(message_id=at):
                self._open["span", at] = _Open(by, event, ReasoningEndEvent(message_id=at), [])
            case ReasoningMessageStartEvent(message_id=at):
                said = self._said.setdefault(at, _Said(by, "reasoning"))
                self._open["thought", at] = _Open(by, event, ReasoningMessageEndEvent(message_id=at), said.text)
            case ToolCallStartEvent(tool_call_id=call):
                said = self._said.setdefault(event.parent_message_id or call, _Said(by, "assistant"))
                arguments: list[str] = []
                said.calls[call] = event.tool_call_name, arguments
                self._open["call", call] = _Open(by, event, ToolCallEndEvent(tool_call_id=call), arguments)
            case _:
                pass

    def snapshot(self) -> MessagesSnapshotEvent:
        """Return all messages, with what open ones have so far.

        A browser keeps its thoughts if a snapshot has none. Void ones are in it then, empty.
        """
        messages = [*self._others, *(_message(at, said) for at, said in self._said.items())]
        if not any(said.role == "reasoning" for said in self._said.values()):
            messages += [ReasoningMessage(id=at, content="") for at in sorted(self._void)]
        return MessagesSnapshotEvent(messages=messages)

    def reopened(self) -> list[BaseEvent]:
        """Return the beginnings of what is open."""
        return [each.start for each in self._open.values()]

    def close(self, by: str | None = None) -> list[BaseEvent]:
        """End what an attempt has open, or all have, and return that; what was opened last ends first."""
        keys = [key for key, each in self._open.items() if by in (None, each.by)]
        return [self._open.pop(key).end for key in reversed(keys)]

    def withdraw(self, by: str) -> MessagesSnapshotEvent:
        """Forget what an attempt has said, and return the messages without it."""
        self._void |= {at for at, said in self._said.items() if said.by == by and said.role == "reasoning"}
        self._said = {at: said for at, said in self._said.items() if said.by != by}
        return self.snapshot()

    def settle(self, by: str, text: str, *, is_new: bool = False) -> bool:
        """Let the last message of an attempt have this text, as its output has; return whether that changes anything.

        Args:
            by: the attempt.
            text: its output.
            is_new: whether a message is added if the attempt has said nothing here.
        """
        own = [said for said in self._said.values() if said.by == by and said.role == "assistant" and said.text]
        if not own and is_new:
            self._said[f"{by}.output"] = _Said(by, "assistant", [text])
        if not own or "".join(own[-1].text) == text:
            return is_new and not own
        own[-1].text = [text]
        return True

    def speakers(self) -> Iterator[str]:
        """Return the attempts that have said something."""
        return iter({said.by: None for said in self._said.values()})


def _message(at: str, said: _Said) -> Message:
    text = "".join(said.text)
    match said.role:
        case "tool":
            return ToolMessage(id=at, content=text, tool_call_id=said.of)
        case "reasoning":
            return ReasoningMessage(id=at, content=text)
        case "activity" if said.shown is not None:
            return ActivityMessage(id=at, activity_type=said.shown.activity_type, content=said.shown.content)
    calls = [
        ToolCall(id=call, function=FunctionCall(name=name, arguments="".join(arguments)))
        for call, (name, arguments) in said.calls.items()
    ]
    return AssistantMessage(id=at, content=text or None, tool_calls=calls or None)


def _id_of(event: BaseEvent) -> str:
    given: Any = event
    return str(given.tool_call_id if hasattr(event, "tool_call_id") else given.message_id)
