"""What has been said so far, as AG-UI's messages: from this a browser that joins is brought up to date."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, cast

from ag_ui.core import (
    ActivityMessage,
    ActivitySnapshotEvent,
    AssistantMessage,
    BaseEvent,
    FunctionCall,
    Message,
    MessagesSnapshotEvent,
    ReasoningMessage,
    ReasoningMessageContentEvent,
    ReasoningMessageStartEvent,
    TextMessageContentEvent,
    TextMessageStartEvent,
    ToolCall,
    ToolCallArgsEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
)

M = TypeVar("M", bound=Message)


class Transcript:
    """The messages of a run.

    Args:
        others: messages of the conversation that are not of this run.
        thoughts: ids of this run's thoughts that the browser has.
    """

    def __init__(self, others: Sequence[Message] = (), thoughts: Iterable[str] = ()) -> None:
        self._others, self._void = others, {*thoughts}
        self._said: dict[str, tuple[str, Message]] = {}
        """By id, the messages and the attempts that say them."""
        self._calls: dict[str, FunctionCall] = {}

    def take(self, by: str, event: BaseEvent) -> BaseEvent:
        """Take note of an event of an attempt, as browsers do, and return it."""
        match event:
            case TextMessageStartEvent(message_id=at):
                self._message(by, AssistantMessage(id=at))
            case ReasoningMessageStartEvent(message_id=at):
                self._message(by, ReasoningMessage(id=at, content=""))
            case TextMessageContentEvent(message_id=at) | ReasoningMessageContentEvent(message_id=at):
                message = cast("AssistantMessage | ReasoningMessage", self._said[at][1])
                message.content = (message.content or "") + event.delta
            case ToolCallStartEvent(tool_call_id=call, tool_call_name=name):
                caller = self._message(by, AssistantMessage(id=event.parent_message_id or call))
                self._calls[call] = FunctionCall(name=name, arguments="")
                caller.tool_calls = [*(caller.tool_calls or ()), ToolCall(id=call, function=self._calls[call])]
            case ToolCallArgsEvent(tool_call_id=call):
                self._calls[call].arguments += event.delta
            case ToolCallResultEvent(message_id=at, tool_call_id=call):
                self._message(by, ToolMessage(id=at, content=str(event.content), tool_call_id=call))
            case ActivitySnapshotEvent(message_id=at, activity_type=sort):
                self._message(by, ActivityMessage(id=at, activity_type=sort, content=event.content))
            case _:
                pass
        return event

    def _message(self, by: str, new: M) -> M:
        return cast("M", self._said.setdefault(new.id, (by, new))[1])

    def snapshot(self) -> MessagesSnapshotEvent:
        """Return all messages, with what open ones have so far.

        A browser keeps its thoughts if a snapshot has none. Void ones are in it then, empty.
        """
        own: list[Message] = [message for _, message in self._said.values()]
        if not any(each.role == "reasoning" for each in own):
            own += [ReasoningMessage(id=at, content="") for at in sorted(self._void)]
        return MessagesSnapshotEvent(messages=[*self._others, *own])

    def withdraw(self, by: str) -> MessagesSnapshotEvent:
        """Forget what an attempt has said, and return the messages without it."""
        self._void |= {at for at, (name, said) in self._said.items() if name == by and said.role == "reasoning"}
        self._said = {at: said for at, said in self._said.items() if said[0] != by}
        return self.snapshot()

    def settle(self, by: str, text: str, *, is_new: bool = False) -> bool:
        """Let the last message of an attempt have this text, as its output has; return whether that changes anything.

        Args:
            by: the attempt.
            text: its output.
            is_new: whether a message is added if the attempt has said nothing here.
        """
        own = [said for name, said in self._said.values() if name == by and said.role == "assistant" and said.content]
        if not own and is_new:
            own = [self._message(by, AssistantMessage(id=f"{by}.output"))]
        if not own or own[-1].content == text:
            return False
        own[-1].content = text
        return True

    def speakers(self) -> Iterator[str]:
        """Return the attempts that have said something."""
        return iter({by: None for by, _ in self._said.values()})
