"""pydantic-ai's encoders for browsers' protocols, one for each attempt, because steps of a run stream at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_ai import messages as native
from pydantic_ai.ui import UIEventStream

from flujo_client.contract.stream import place_of

ENCODED: Final = ("token", "tool_call", "tool_result")
"""The kinds of events whose data is an event of pydantic-ai."""
_EVENT: Final[TypeAdapter[native.AgentStreamEvent]] = TypeAdapter(native.AgentStreamEvent)
E = TypeVar("E")


class NumberedIds:
    """Gives messages ids of the attempt and a number, the same for every reader of a run."""

    message_id: str
    prefix = ""
    _count = 0

    def new_message_id(self) -> str:
        self._count += 1
        self.message_id = f"{self.prefix}.{self._count}"
        return self.message_id


def try_of(address: str, step: str, attempt: int) -> str:
    """Return the name of an attempt in ids."""
    return f"{place_of(address, step)}#{attempt}"


class Encoders(Generic[E]):
    """The encoders of a run, which `make` makes from the names of attempts, and what is open in the protocol.

    `parts` has for each part of a message the field with its id, and the classes that start, continue and end it.
    """

    def __init__(
        self,
        make: Callable[[str], UIEventStream[Any, E, Any, Any]],
        parts: Iterable[tuple[str, type[E], type[E] | None, type[E]]],
    ) -> None:
        self._make, self._made = make, dict[str, "UIEventStream[Any, E, Any, Any]"]()
        self._parts = {kind: part for part in parts for kind in part[1:] if kind}
        self._started = set[str]()
        self._open: dict[tuple[type[E], str], tuple[str, E, E]] = {}

    async def encode(self, name: str, data: Mapping[str, Any]) -> list[E]:
        """Encode an attempt's event of pydantic-ai; leave out what continues or ends a part that is not open, which browsers reject."""
        try:
            event = _EVENT.validate_python(dict(data))
        except ValidationError:  # of another version of pydantic-ai
            return []
        if isinstance(event, native.PartStartEvent):
            self._started.add(name)
        elif isinstance(event, native.PartDeltaEvent | native.PartEndEvent) and name not in self._started:
            return []  # its start is lost
        if name not in self._made:
            if isinstance(event, native.PartStartEvent):
                event.previous_part_kind = None  # the part before is closed, or lost
            self._made[name] = self._make(name)
            self._made[name].new_message_id()
        encoder = self._made[name]
        encoded = [each async for each in encoder.handle_event(event) if self._passes(name, each)]
        if isinstance(event, native.FunctionToolCallEvent | native.OutputToolCallEvent):
            encoder.new_message_id()  # the model's next text is another message
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
        return [start for _, start, _ in self._open.values()]

    def close(self, name: str = "") -> list[E]:
        """Forget an attempt, or all, and return the ends of its open parts, the last first. Its next text starts a new part."""
        for each in [name] if name else [*self._made]:
            self._made.pop(each, None)
            self._started.discard(each)
        keys = [key for key, (attempt, *_) in self._open.items() if name in ("", attempt)]
        return [self._open.pop(key)[2] for key in reversed(keys)]
