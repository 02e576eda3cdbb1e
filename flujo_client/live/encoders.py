"""pydantic-ai's encoders for browsers' protocols, one for each attempt at a step: steps of a run speak side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    OutputToolCallEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
)

from flujo_client.contract.stream import StreamEvent, place_of

if TYPE_CHECKING:
    from pydantic_ai.ui import UIEventStream

SPOKEN: Final = ("token", "tool_call", "tool_result")
"""The kinds of events that have one of pydantic-ai's as data."""
_EVENT: Final[TypeAdapter[AgentStreamEvent]] = TypeAdapter(AgentStreamEvent)
E = TypeVar("E")


class NumberedIds:
    """Gives messages ids that are the same for every reader of a run: the attempt's, and a number."""

    message_id: str
    prefix = ""
    _count = 0

    def new_message_id(self) -> str:
        """Make the id of another message."""
        self._count += 1
        self.message_id = f"{self.prefix}.{self._count}"
        return self.message_id


def try_of(event: StreamEvent) -> str:
    """Return how an attempt at a step is named in ids."""
    return f"{place_of(event.address, event.step)}#{event.attempt}"


class Encoders(Generic[E]):
    """The encoders of a run.

    Args:
        make: makes the encoder of an attempt, whose name it gets.
    """

    def __init__(self, make: Callable[[str], UIEventStream[Any, E, Any, Any]]) -> None:
        self._make, self._made = make, dict[str, _Encoder[E]]()

    async def encode(self, event: StreamEvent) -> list[E]:
        """Return what an event of an agent is in the protocol; nothing for what continues a part whose beginning is lost."""
        name = try_of(event)
        if name not in self._made:
            self._made[name] = _Encoder(self._make(name))
        return await self._made[name].encode(event.data)

    def forget(self, name: str = "") -> None:
        """Forget an attempt, or all: what they say next begins with a new part."""
        for each in [name] if name else [*self._made]:
            self._made.pop(each, None)


class _Encoder(Generic[E]):
    def __init__(self, encoder: UIEventStream[Any, E, Any, Any]) -> None:
        self._encoder = encoder
        self._is_response = self._has_part = False

    async def encode(self, data: Mapping[str, Any]) -> list[E]:
        try:
            event = _EVENT.validate_python(dict(data))
        except ValidationError:  # of a version of pydantic-ai that is not here
            return []
        encoded: list[E] = []
        match event:
            case PartStartEvent():
                if not self._is_response:
                    encoded += [each async for each in self._encoder.before_response()]
                self._is_response = self._has_part = True
            case PartDeltaEvent() | PartEndEvent() if not self._has_part:
                return []
            case PartEndEvent():
                self._has_part = False
            case FunctionToolCallEvent() | OutputToolCallEvent():
                self._is_response = False
            case _:
                pass
        return encoded + [each async for each in self._encoder.handle_event(event)]
