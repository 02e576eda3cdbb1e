"""pydantic-ai's encoders for browsers' protocols, one for each attempt at a step: steps of a run speak side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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

from flujo_client.contract.stream import place_of

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


def try_of(address: str, step: str, attempt: int) -> str:
    """Return how an attempt at a step is named in ids."""
    return f"{place_of(address, step)}#{attempt}"


class Encoders(Generic[E]):
    """The encoders of a run, and what is open in the protocol.

    Args:
        make: makes the encoder of an attempt, whose name it gets.
        parts: the classes that begin, continue and end each sort of thing that is open for a while, and the field with its id.
    """

    def __init__(
        self,
        make: Callable[[str], UIEventStream[Any, E, Any, Any]],
        parts: Iterable[tuple[str, type[E], type[E] | None, type[E]]],
    ) -> None:
        self._make, self._made = make, dict[str, "UIEventStream[Any, E, Any, Any]"]()
        self._parts = {kind: part for part in parts for kind in part[1:] if kind}
        self._speaking = set[str]()
        self._open: dict[tuple[type[E], str], tuple[str, E, E]] = {}

    async def encode(self, name: str, data: Mapping[str, Any]) -> list[E]:
        """Return what an attempt's event of pydantic-ai is in the protocol; nothing for what continues or ends what is not open, which no browser may get."""
        try:
            said = _EVENT.validate_python(dict(data))
        except ValidationError:  # of a version of pydantic-ai that is not here
            return []
        if isinstance(said, PartStartEvent):
            self._speaking.add(name)
        elif isinstance(said, PartDeltaEvent | PartEndEvent) and name not in self._speaking:  # its beginning is lost
            return []
        if name not in self._made:
            if isinstance(said, PartStartEvent):
                said.previous_part_kind = None  # the part that it continues is closed, or lost
            self._made[name] = self._make(name)
            self._made[name].new_message_id()
        encoder = self._made[name]
        encoded = [each async for each in encoder.handle_event(said) if self._passes(name, each)]
        if isinstance(said, FunctionToolCallEvent | OutputToolCallEvent):  # what the model says next is another message
            encoder.new_message_id()
        return encoded

    def _passes(self, name: str, given: E) -> bool:
        kind = type(given)
        if kind not in self._parts:
            return True
        field, start, _, end = self._parts[kind]
        key = end, getattr(given, field)
        if kind is start:
            self._open[key] = name, given, end(**{field: key[1]})
        return (self._open.pop(key, None) if kind is end else self._open.get(key)) is not None

    def reopened(self) -> list[E]:
        """Return the beginnings of what is open."""
        return [start for _, start, _ in self._open.values()]

    def close(self, name: str = "") -> list[E]:
        """Forget an attempt, or all, and return the ends of what it has open, the last first. What it says next begins with a new part."""
        for each in [name] if name else [*self._made]:
            self._made.pop(each, None)
            self._speaking.discard(each)
        keys = [key for key, (by, *_) in self._open.items() if name in ("", by)]
        return [self._open.pop(key)[2] for key in reversed(keys)]
