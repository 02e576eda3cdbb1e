"""The effects of the engine: the steps of an attempt are coroutines, which await these.

There are two kinds: in the calling thread, for Celery's own pools, tests and tools (`BlockingEffects`), and on the engine's event loop, for
our own worker pool (`LoopEffects` in `engine.py`). The engine's code is the same for both and must not know which it has.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Final, ParamSpec, Protocol, TypeVar, Unpack

from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Event
from flujo_worker.concurrency.call_context import may_wait_for_locks
from flujo_worker.domain.values import Decision, FanOut
from flujo_worker.errors import RowLocked
from flujo_worker.ports import Claim, ClaimTerms, Committed, PlanName, Stores

P = ParamSpec("P")
Q = TypeVar("Q")
T = TypeVar("T")


FIRST_WAIT_S: Final = 0.25
LONGEST_WAIT_S: Final = 2.0
"""Seconds until a merge that found its rows locked is tried again, at first and at most."""


class Effects(Protocol):
    """The effects of an attempt."""

    async def claim(self, envelope: Envelope, worker: str, **terms: Unpack[ClaimTerms]) -> Claim:
        """Take the attempt that a message asks for; see `AttemptStore.claim`."""

    async def commit(self, decision: Decision) -> Committed:
        """Apply a decision; see `AttemptStore.commit`."""

    async def send(self, envelopes: Sequence[Envelope], fan_out: FanOut | None) -> None:
        """Publish messages; the sweeper publishes those that the broker does not accept."""

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what blocks: other statements, Redis, imports, sync code of users."""

    async def together(self, act: Callable[[Sequence[Q]], Sequence[T]], item: Q) -> T:
        """Call what blocks for this item, and for those that others ask it for at this moment: `act` returns one result for each, in their order."""

    def result(self, future: Future[T]) -> Awaitable[T]:
        """Wait for a future; raises `concurrent.futures.CancelledError` if that was cancelled."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry out work of the engine and wait for its end, from a thread that may wait."""


class BlockingEffects:
    """Everything is done in the thread that asks for it, which waits meanwhile."""

    def __init__(self, stores: Stores, send: Callable[[Sequence[Envelope], FanOut | None], None]) -> None:
        self._stores, self._send = stores, send

    async def claim(self, envelope: Envelope, worker: str, **terms: Unpack[ClaimTerms]) -> Claim:
        return claim_alone(self._stores, envelope, worker, **terms)

    async def commit(self, decision: Decision) -> Committed:
        wait_s = FIRST_WAIT_S
        while True:
            try:
                return self._stores.attempts.commit(decision)
            except RowLocked:
                if not may_wait_for_locks():
                    raise
            if wait_s == FIRST_WAIT_S:
                note_lock(self._stores, decision.notice.envelope)
            time.sleep(wait_s * random.uniform(0.5, 1.5))  # noqa: ASYNC251, S311 - this thread waits for everything; spreads retries, guards nothing
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def send(self, envelopes: Sequence[Envelope], fan_out: FanOut | None) -> None:
        self._send(envelopes, fan_out)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    async def together(self, act: Callable[[Sequence[Q]], Sequence[T]], item: Q) -> T:
        return act([item])[0]

    async def result(self, future: Future[T]) -> T:
        return future.result()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            work.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        work.close()
        raise RuntimeError("work that waits on an event loop was given to a thread that has none")


def claim_alone(stores: Stores, envelope: Envelope, worker: str, **terms: Unpack[ClaimTerms]) -> Claim:
    """Claim one attempt with a separate statement."""
    terms["plan"] = PlanName(envelope.ticket.reference, envelope.ticket.fingerprint)
    terms["fan_outs"] = tuple(envelope.lanes)
    return stores.attempts.claim(envelope.key, worker, **terms)


def note_lock(stores: Stores, envelope: Envelope) -> None:
    """Record an event: an attempt waits for rows that another transaction has locked, with the possible holders."""
    event = Event("attempt.waits_for_lock", {"holders": list(stores.attempts.lock_holders())}, "warning")
    stores.records.note(envelope.ticket.run, [event], key=envelope.key)
