"""Events that are sent to runs: their names, and the checks before they are recorded. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from flujo_client.contract.json_schema import fits_schema
from flujo_client.errors import EventError
from flujo_client.sizes import MAX_EVENTS, MAX_WORD


@dataclass(frozen=True, slots=True)
class EventState:
    """The state of a run for an event that is sent to it.

    Attributes:
        status: the run's.
        is_live: whether it takes events.
        names: the events that its plan waits for.
        schemas: the JSON Schema of each step that waits for this event now; None for any value.
        digest: of the value that was sent under this id before; None if there was none.
        buffered: the number of events that no step has taken yet, up to the limit.
    """

    status: str
    is_live: bool
    names: Collection[str]
    schemas: Sequence[dict[str, Any] | None] = ()
    digest: str | None = None
    buffered: int = 0


def wrong_name(name: Any) -> str | None:
    """Return what is wrong with an event's name or id; None if nothing is."""
    if not isinstance(name, str) or not name.strip():
        return "must be a text that is not empty"
    if len(name) > MAX_WORD or not name.isprintable():
        return f"must have at most {MAX_WORD} characters, all of them printable"
    return None


def check_words(**words: Any) -> None:
    """Raise EventError if the `name` of an event, or its `id`, is invalid."""
    for what, given in words.items():
        if wrong := wrong_name(given):
            raise EventError(f"an event's {what} {wrong}, got {repr(given)[:42]}", code="INVALID_EVENT")


def check_event(run_id: str, name: str, value: Any, state: EventState) -> None:
    """Raise EventError if a run will never take an event, or if no step that waits for it takes this value."""
    if not state.is_live:
        raise EventError(f"run {run_id} has ended ({state.status}): it takes no events any more", code="RUN_ENDED")
    if name not in state.names:
        known = ", ".join(f"'{each}'" for each in sorted(state.names)) or "none"
        message = f"no step of run {run_id} waits for an event '{name}'; it waits for: {known}"
        raise EventError(message, code="UNKNOWN_EVENT")
    if state.buffered >= MAX_EVENTS:
        message = f"run {run_id} has {MAX_EVENTS:,} events that no step has taken yet; send more when some are"
        raise EventError(message, code="EVENT_LIMIT")
    wrong = [None if schema is None else fits_schema(value, schema, shows_value=True) for schema in state.schemas]
    if wrong and all(wrong):
        raise EventError(f"the event '{name}' for run {run_id} does not fit: {wrong[0]}", code="EVENT_REFUSED")


def id_taken(run_id: str, name: str, event_id: str) -> EventError:
    """Return the error for an id under which another value was sent."""
    message = f"event '{name}' with id '{event_id}' was sent to run {run_id} before, with another value"
    return EventError(message, suggestion="give another event its own id", code="EVENT_CONFLICT")
