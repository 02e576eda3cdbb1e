"""The effects of the client's operations. An operation is a generator of effects; `door.py` and `async_door.py` perform them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from flujo_client.contract.envelope import Envelope
    from flujo_client.gateway.post import ClientPublisher
    from flujo_client.gateway.requests import Request


class Query(NamedTuple):
    """One statement to Postgres, on the caller's connection if one is given."""

    request: Request[Any]
    connection: Any = None


class AskBroker(NamedTuple):
    """Call `ask` with the publisher; the effect's answer is the result."""

    ask: Callable[[ClientPublisher], Any]


class ReachBroker(NamedTuple):
    """Make sure that the broker answers, or has answered within a second."""


class Together(NamedTuple):
    """Perform `act` for this item, and for those of other calls of the same `kind` that are under way.

    `act` returns a result for each item, in their order. The answer is that of this item; None if there was no group, or it was broken off.
    """

    kind: Hashable
    item: Any
    act: Callable[[Sequence[Any]], Operation[Sequence[Any]]]


class Publish(NamedTuple):
    """Send envelopes; the answer is whether the broker accepted them."""

    envelopes: Sequence[Envelope]


class MarkSent(NamedTuple):
    """Mark messages as sent, soon, without waiting; `sent_at` is the monotonic time just before the send."""

    keys: Sequence[str]
    sent_at: float


class AwaitRun(NamedTuple):
    """Wait until a run may have left these statuses, for at most some seconds."""

    run_id: str
    statuses: Collection[str]
    seconds: float


class AwaitNews(NamedTuple):
    """Wait until what `listen` was given is called, from any thread, for at most some seconds; the answer is whether it was."""

    listen: Callable[[Callable[[], object]], AbstractContextManager[None]]
    seconds: float


class Delay(NamedTuple):
    """Wait some seconds."""

    seconds: float


Effect = Query | AskBroker | ReachBroker | Together | Publish | MarkSent | AwaitRun | AwaitNews | Delay

T = TypeVar("T")
Operation: TypeAlias = Generator[Effect, Any, T]
"""An operation, written once for the sync and the async client; it returns a T."""


def query(request: Request[T], connection: Any = None) -> Operation[T]:
    """Send one of the gateway's requests; return its result."""
    answer: T = yield Query(request, connection)
    return answer
