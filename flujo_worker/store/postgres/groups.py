"""Claims and merges of many attempts with one statement: what comes while a statement is under way goes next, as one group.

No timer: whoever comes alone goes at once. A group answers only for what it took or merged. `None` is no answer: ask the store alone, which
waits for locks and for Postgres, tells why not, and knows what to make of an answer that was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import psycopg

from flujo_client.transport.postgres import fate
from flujo_worker import failpoints
from flujo_worker.store.postgres.group_bind import (
    ClaimRequest,
    bind_claims,
    bind_merges,
    is_groupable,
    read_claims,
    read_merges,
    size,
)
from flujo_worker.store.postgres.loop_connection import LoopConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from flujo_worker.domain.values import Decision
    from flujo_worker.ports import Claim, Committed, PlanName
    from flujo_worker.store.postgres.loop_connection import Row

logger = logging.getLogger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")

LARGEST: Final = 64
HEAVIEST: Final = 1_000_000
"""How many rows a group has at most, and how many bytes, unless one alone has more."""
SUSPECT_S: Final = 60.0
"""How long a pipeline goes without groups after one of its attempts could not be bound or was refused as an error."""


class GroupedLedger:
    """Claims and merges many attempts with one statement each.

    Args:
        url: a libpq connection string. It holds two connections, one for each kind of statement.
        prepare: whether statements may be prepared; off for PgBouncer before 1.21 in transaction mode.
    """

    def __init__(self, url: str, *, prepare: bool = True) -> None:
        claims, merges = (LoopConnection(url, name, prepare=prepare) for name in ("claim_many", "conclude_many"))
        self._claims = Groups(claims, bind_claims, read_claims)
        self._merges = Groups(merges, _bind_merges, _read_merges)

    async def open(self) -> None:
        """Begin to connect, on the loop that this is called on. Until it is connected there are no answers."""
        self._claims.connection.open()
        self._merges.connection.open()

    async def close(self) -> None:
        """Leave what is under way without an answer."""
        await self._claims.connection.close()
        await self._merges.connection.close()

    @property
    def is_ready(self) -> bool:
        """Tell whether groups are answered now."""
        return self._claims.connection.is_ready and self._merges.connection.is_ready

    async def claim(
        self, key: str, worker: str, *, fan_outs: Sequence[str] = (), plan: PlanName | None = None
    ) -> Claim | None:
        """Take an attempt that nobody has, as the store's `claim` in a shared room does.

        If the caller is cancelled while the statement is under way, the attempt may be claimed and nobody works on it: the lease gives
        it back, as it does after an answer that was lost.
        """
        return await self._claims.ask(key, plan and plan.reference, ClaimRequest(key, worker, fan_outs, plan))

    async def commit(self, decision: Decision) -> Committed | None:
        """Merge a decision, as the store's `commit` does."""
        if not is_groupable(decision):
            return None
        envelope = decision.notice.envelope
        return await self._merges.ask(envelope.key, envelope.ticket.reference, decision, size(decision))


def _bind_merges(decisions: Sequence[Decision]) -> dict[str, Any]:
    failpoints.hit("before_commit")
    return bind_merges(decisions)


def _read_merges(decisions: Sequence[Decision], rows: Sequence[Row]) -> list[Committed | None]:
    failpoints.hit("answer_lost")
    return read_merges(decisions, rows)


@dataclass(eq=False, slots=True)
class _Asked(Generic[Q, A]):
    """A request that waits for its answer, and the pipeline that it belongs to."""

    key: str
    reference: str | None
    request: Q
    size: int
    answer: asyncio.Future[A | None]


class Groups(Generic[Q, A]):
    """One statement for groups of requests.

    Args:
        connection: executes it.
        bind: makes its parameters.
        read: gives the answer to each request.
    """

    def __init__(
        self,
        connection: LoopConnection,
        bind: Callable[[Sequence[Q]], dict[str, Any]],
        read: Callable[[Sequence[Q], Sequence[Row]], list[A | None]],
    ) -> None:
        self.connection, self._bind, self._read = connection, bind, read
        self._waiting: deque[_Asked[Q, A]] = deque()
        self._apart: deque[list[_Asked[Q, A]]] = deque()
        self._keys: set[str] = set()
        self._suspects: dict[str, float] = {}
        self._is_busy = False

    async def ask(self, key: str, reference: str | None, request: Q, size: int = 0) -> A | None:
        """Ask in the next group. A key that is asked for already has no second answer."""
        loop = asyncio.get_running_loop()
        if not self.connection.is_ready or key in self._keys or self._is_suspect(reference, loop.time()):
            return None
        asked: _Asked[Q, A] = _Asked(key, reference, request, size, loop.create_future())
        self._keys.add(key)
        self._waiting.append(asked)
        if not self._is_busy:
            self._is_busy = True
            loop.call_soon(self._send)  # after the others that the loop wakes at this moment
        try:
            return await asked.answer
        finally:
            self._keys.discard(key)

    def _is_suspect(self, reference: str | None, now: float) -> bool:
        return reference is not None and self._suspects.get(reference, 0.0) > now

    def _send(self) -> None:
        """Send the next group, until one is under way or nothing waits."""
        while group := self._next():
            try:
                parameters = self._bind([each.request for each in group])
                self.connection.execute(parameters, partial(self._answered, group))
            except Exception as error:  # noqa: BLE001 - whatever a value makes fail
                self._failed(group, error)
            else:
                return
        self._is_busy = False

    def _next(self) -> list[_Asked[Q, A]]:
        """Take the next group. Whoever was cancelled while waiting asks nothing any more."""
        if self._apart:
            return self._apart.popleft()
        group: list[_Asked[Q, A]] = []
        free = HEAVIEST
        while self._waiting and len(group) < LARGEST and (not group or self._waiting[0].size <= free):
            asked = self._waiting.popleft()
            if not asked.answer.done():
                group.append(asked)
                free -= asked.size
        return group

    def _answered(self, group: list[_Asked[Q, A]], answer: list[Row] | psycopg.Error) -> None:
        if isinstance(answer, psycopg.Error):
            self._failed(group, answer)
        else:
            for asked, given in zip(group, self._answers(group, answer), strict=True):
                _tell(asked, given)
        self._send()

    def _answers(self, group: list[_Asked[Q, A]], rows: Sequence[Row]) -> Sequence[A | None]:
        """Read the answers. Where that fails there are none, as if they were lost on the way."""
        try:
            return self._read([each.request for each in group], rows)
        except Exception:
            logger.exception("the answer to a group cannot be read")
            return [None] * len(group)

    def _failed(self, group: list[_Asked[Q, A]], error: Exception) -> None:
        """Halve a group with an error that is a value's fault; one row of it goes alone, and its pipeline for a while."""
        is_value = not isinstance(error, psycopg.Error) or fate(error) == "ours"
        if is_value and len(group) > 1:
            half = len(group) // 2
            self._apart.extendleft((group[half:], group[:half]))
            return
        for asked in group:
            if is_value and asked.reference is not None:
                logger.warning(
                    "attempts of %s go without groups for a while: %s", asked.reference, type(error).__name__
                )
                self._suspects[asked.reference] = asked.answer.get_loop().time() + SUSPECT_S
            _tell(asked, None)


def _tell(asked: _Asked[Q, A], answer: A | None) -> None:
    if not asked.answer.done():
        asked.answer.set_result(answer)
