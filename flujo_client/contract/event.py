"""Events that are sent to runs: their names and ids, which are refused, and the tokens in webhooks' addresses. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from flujo_client.contract.approval import Keys, sign_token, verify_token
from flujo_client.contract.json_schema import fits_schema
from flujo_client.errors import ConfigurationError, EventError
from flujo_client.sizes import MAX_EVENTS, MAX_WORD

if TYPE_CHECKING:
    from flujo_client.plan.plan import Node

_MARK = "fe1"


@dataclass(frozen=True, slots=True)
class EventState:
    """The state of a run, as far as it matters for an event that is sent to it.

    Attributes:
        status: the run's.
        is_live: whether it takes events.
        names: the events that its plan waits for anywhere.
        schemas: the JSON Schema of each step that waits for this one now; None for any value.
        digest: of the value that was sent under this id before; None if there was none.
        buffered: how many events no step has taken yet, up to the limit.
    """

    status: str
    is_live: bool
    names: Collection[str]
    schemas: Sequence[dict[str, Any] | None] = ()
    digest: str | None = None
    buffered: int = 0


def event_names(nodes: Iterable[Node]) -> set[str]:
    """Return the events that nodes of a plan wait for, with all that is inside them."""
    found = set[str]()
    for node in nodes:
        found |= {node.rules["event"]} if "event" in node.rules else event_names(chain(*node.bodies.values()))
    return found


def wrong_name(name: Any) -> str | None:
    """Return the fault of an event's name, or of its id, if it has one."""
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
        raise EventError(
            f"no step of run {run_id} waits for an event '{name}'; it waits for: {known}", code="UNKNOWN_EVENT"
        )
    if state.buffered >= MAX_EVENTS:
        message = f"run {run_id} has {MAX_EVENTS:,} events that no step has taken yet; send more when some are"
        raise EventError(message, code="EVENT_LIMIT")
    wrong = [None if schema is None else fits_schema(value, schema, shows_value=True) for schema in state.schemas]
    if wrong and all(wrong):
        raise EventError(f"the event '{name}' for run {run_id} does not fit: {wrong[0]}", code="EVENT_REFUSED")


def id_taken(run_id: str, name: str, event_id: str) -> EventError:
    """Return the error for an id under which another value was sent."""
    return EventError(
        f"event '{name}' with id '{event_id}' was sent to run {run_id} before, with another value",
        suggestion="give another event its own id",
        code="EVENT_CONFLICT",
    )


class EventAddress(NamedTuple):
    """The run and the event that a webhook's token is for."""

    run_id: str
    name: str


def make_event_token(run_id: str, name: str, expires_at: float | None, keys: Keys) -> str:
    """Sign the right to send an event to a run until a time in unix seconds; raises ConfigurationError without a signing key."""
    check_words(name=name)
    token = sign_token(_MARK, [run_id, name, expires_at], keys)
    if token is None:
        raise ConfigurationError(
            "a token for events needs a key to sign it", suggestion="set `signing_keys`; `flujo doctor` says how"
        )
    return token


def read_event_token(token: str, keys: Keys, *, now: float) -> EventAddress:
    """Read a webhook's token; any of the keys may have signed it, and `now` is in unix seconds.

    Raises:
        EventError: it was not signed by one of the keys, is damaged (`BAD_TOKEN`), or has expired (`TOKEN_EXPIRED`).
    """
    bound = verify_token(_MARK, token, keys)
    if bound is None:
        raise EventError("this is not a valid token for an event", code="BAD_TOKEN")
    run_id, name, expires = bound
    if expires is not None and expires <= now:
        raise EventError(f"the token for event '{name}' has expired", code="TOKEN_EXPIRED")
    return EventAddress(run_id, name)
