"""Claim and merge many attempts with one statement: requests that arrive during a statement form the next group.

There is no timer: a single request is sent at once. A group answers only for what it claimed or merged. `None` means no answer: call the
store for that request alone, which waits for locks and for Postgres, reports why not, and handles a lost answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import psycopg

from flujo_client.transport.postgres import fate
from flujo_worker import failpoints
from flujo_worker.domain.units import Unit
from flujo_worker.store.postgres import group_bind
from flujo_worker.store.postgres.group_bind import ClaimRequest
from flujo_worker.store.postgres.loop_connection import LoopConnection
from flujo_worker.store.postgres.statements import UNDONE
from flujo_worker.store.postgres.units import STATEMENTS as UNITS
from flujo_worker.store.postgres.units import call_units, read_units, unit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flujo_worker.domain.budget import Reservation
    from flujo_worker.domain.units import Written
    from flujo_worker.domain.values import Decision
    from flujo_worker.ports import Claim, Committed, PlanName
    from flujo_worker.store.postgres.loop_connection import Call, Row, Rows

logger = logging.getLogger(__name__)

Q = TypeVar("Q")
A = TypeVar("A")

GROUP_CONNECTIONS: Final = 2
"""The connections of a process for groups of claims and of merges; those for limits are opened in addition, at the first request."""
LARGEST: Final = 64
HEAVIEST: Final = 1_000_000
"""The maximum number of rows in a group, and of bytes, unless a single row has more."""
SUSPECT_S: Final = 60.0
"""Seconds that a pipeline is excluded from groups after one of its attempts could not be bound, or caused an error."""
AGAIN_S: Final = (0.005, 0.02, 0.05)
"""Seconds that a claim that was left out waits for each of its next groups: usually its row was just being marked as sent."""


class GroupedLedger:
    """Claims and merges many attempts with one statement each.

    Args:
        url: a libpq connection string. It holds two connections, one for claims and one for merges, and two more once there are limits:
            attempts without limits never wait for a budget. One more writes the units of durable attempts.
        prepare: whether statements may be prepared, on connections with their own session.
        counts_chords: whether chords count the branches of fan-outs; otherwise merges look whether they closed the last one.
        is_alone: returns whether the caller is the only one with requests: then it waits for no other.
    """

    def __init__(
        self,
        url: str,
        *,
        prepare: bool = True,
        counts_chords: bool = True,
        is_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        claims = LoopConnection(url, group_bind.CLAIMS, prepare=prepare, settings=group_bind.CLAIM_SETTINGS)
        kinds = (group_bind.MERGES, group_bind.LIMITED_CLAIMS, group_bind.LIMITED_MERGES, UNITS)
        merges, limited_claims, limited_merges, units = (LoopConnection(url, names, prepare=prepare) for names in kinds)
        self.connections = [claims, merges, limited_claims, limited_merges, units]
        self._is_alone = is_alone
        self._claims = Groups(claims, group_bind.call_claims, group_bind.read_claims, is_alone, again_s=AGAIN_S)
        fan_outs = group_bind.ABORTED if counts_chords else group_bind.CLOSED
        after = After(fan_outs.call, fan_outs.read)
        self._limited_claims = Groups(limited_claims, group_bind.call_claims, group_bind.read_claims, is_alone)
        self._merges, self._limited_merges = (
            Groups(each, _call_merges, _read_merges, is_alone, after=after) for each in (merges, limited_merges)
        )
        self._units = Groups(units, call_units, read_units, lambda: False)

    async def open(self) -> None:
        """Start to connect, on the calling event loop.

        Until it is connected there are no answers. The connections for limits are opened at the first request.
        """
        self._claims.connection.open()
        self._merges.connection.open()

    def open_units(self) -> None:
        """Start to connect for units, before the first is announced."""
        self._units.connection.open()

    async def close(self) -> None:
        """Leave requests that are under way without an answer."""
        for connection in self.connections:
            await connection.close()

    def doubt(self) -> None:
        """Connect again, because another connection of this process got no answer. Safe for any thread."""
        for connection in self.connections:
            connection.doubt()

    @property
    def is_ready(self) -> bool:
        """Return whether groups are answered."""
        return self._claims.connection.is_ready and self._merges.connection.is_ready

    @property
    def budgets_locked_at(self) -> float:
        """Return when a group of claims under limits last gave up waiting for a lock, by the clock of the loop."""
        return self._limited_claims.locked_at

    async def claim(
        self,
        key: str,
        worker: str,
        *,
        fan_outs: Sequence[str] = (),
        plan: PlanName | None = None,
        to_reserve: Sequence[Reservation] = (),
    ) -> Claim | None:
        """Take an attempt that no worker has, as the store's `claim` in a shared room does.

        If the caller is cancelled while the statement is under way, the attempt may be claimed without being worked on: the end of the
        lease releases it, as after a lost answer.
        """
        groups = self._limited_claims if to_reserve else self._claims
        return await groups.ask(key, plan and plan.reference, ClaimRequest(key, worker, fan_outs, plan, to_reserve))

    async def commit(self, decision: Decision) -> Committed | None:
        """Merge a decision, as the store's `commit` does.

        One that fits no group may wait for locks, so it is merged here only while there is no other request.
        """
        envelope, groups, weight = decision.notice.envelope, self._merges, HEAVIEST
        if group_bind.is_groupable(decision):
            weight = group_bind.size(decision)
            groups = self._merges if envelope.ticket.limits is None else self._limited_merges
        elif not (self._is_alone() and group_bind.is_mergeable_alone(decision)):
            return None
        return await groups.ask(envelope.key, envelope.ticket.reference, decision, weight)

    async def write_unit(self, written: Written) -> bool | None:
        """Announce a unit or record its answer, as the store's `begin` and `settle` do; return whether that was written."""
        unit, answer = unit_of(written), None if isinstance(written, Unit) else written.answer
        weight = 0 if answer is None else answer.size
        return await self._units.ask(f"{unit.id}:{answer is None}", None, written, weight)


def _call_merges(decisions: Sequence[Decision]) -> list[Call]:
    failpoints.hit("before_commit")
    return group_bind.call_merges(decisions)


def _read_merges(decisions: Sequence[Decision], answers: Sequence[Sequence[Row]]) -> list[Committed | None]:
    failpoints.hit("answer_lost")
    return group_bind.read_merges(decisions, answers)


class After(NamedTuple, Generic[Q, A]):
    """Reads after a group's commit, in the same round trip: `call` returns the statements, `read` adds their rows to the answers."""

    call: Callable[[Sequence[Q]], list[Call]]
    read: Callable[[Sequence[Q], Sequence[A | None], Sequence[Row]], list[A | None]]


@dataclass(eq=False, slots=True)
class _Pending(Generic[Q, A]):
    """A request that waits for its answer, with its pipeline's reference."""

    key: str
    reference: str | None
    request: Q
    size: int
    answer: asyncio.Future[A | None]
    left_out: int = 0


class Groups(Generic[Q, A]):
    """One transaction for groups of requests.

    Args:
        connection: executes it.
        call: returns its statements with their parameters.
        read: returns the answer to each request, from the rows of each statement.
        is_alone: returns whether there can be no other request now.
        again_s: how many seconds a request that a group left out waits for each of its next groups, before it has no answer.
        after: what a group reads once it is committed.
    """

    def __init__(
        self,
        connection: LoopConnection,
        call: Callable[[Sequence[Q]], list[Call]],
        read: Callable[[Sequence[Q], Sequence[Sequence[Row]]], list[A | None]],
        is_alone: Callable[[], bool],
        *,
        again_s: Sequence[float] = (),
        after: After[Q, A] | None = None,
    ) -> None:
        self.connection, self._call, self._read, self._is_alone = connection, call, read, is_alone
        self._again_s, self._after = again_s, after
        self._waiting: deque[_Pending[Q, A]] = deque()
        self._halves: deque[list[_Pending[Q, A]]] = deque()
        self._keys: set[str] = set()
        self._suspects: dict[str, float] = {}
        self._is_busy = False
        self.locked_at = float("-inf")  # when a group gave up waiting for a lock, by the loop's clock

    async def ask(self, key: str, reference: str | None, request: Q, size: int = 0) -> A | None:
        """Add a request to the next group. A key that is already requested gets no second answer."""
        loop = asyncio.get_running_loop()
        self.connection.open()
        if not self.connection.is_ready or key in self._keys or self._is_suspect(reference, loop.time()):
            return None
        pending: _Pending[Q, A] = _Pending(key, reference, request, size, loop.create_future())
        self._keys.add(key)
        self._queue(pending)
        try:
            return await pending.answer
        finally:
            self._keys.discard(key)

    def _queue(self, pending: _Pending[Q, A]) -> None:
        self._waiting.append(pending)
        if self._is_busy:
            return
        self._is_busy = True
        if self._is_alone():
            self._send()
        else:
            asyncio.get_running_loop().call_soon(self._send)  # after the other tasks that the loop wakes now

    def _is_suspect(self, reference: str | None, now: float) -> bool:
        return reference is not None and self._suspects.get(reference, 0.0) > now

    def _send(self) -> None:
        """Send the next group, until one is under way or nothing waits."""
        while group := self._next():
            try:
                requests = [each.request for each in group]
                after = () if self._after is None else self._after.call(requests)
                self.connection.execute(self._call(requests), partial(self._resolve_group, group), after)
            except Exception as error:  # noqa: BLE001 - a value may cause any error
                self._handle_error(group, error)
            else:
                return
        self._is_busy = False

    def _next(self) -> list[_Pending[Q, A]]:
        """Take the next group, without those that were cancelled while they waited."""
        if self._halves:
            return self._halves.popleft()
        group: list[_Pending[Q, A]] = []
        free = HEAVIEST
        while self._waiting and len(group) < LARGEST and (not group or self._waiting[0].size <= free):
            pending = self._waiting.popleft()
            if not pending.answer.done():
                group.append(pending)
                free -= pending.size
        return group

    def _resolve_group(self, group: list[_Pending[Q, A]], answer: Rows | psycopg.Error, after: Rows) -> None:
        if isinstance(answer, psycopg.Error):
            self._handle_error(group, answer)
        else:
            for pending, own in zip(group, self._read_answers(group, answer, after), strict=True):
                if own is None and pending.left_out < len(self._again_s):
                    self._retry(pending)
                else:
                    _resolve(pending, own)
        self._send()

    def _retry(self, pending: _Pending[Q, A]) -> None:
        asyncio.get_running_loop().call_later(self._again_s[pending.left_out], self._queue, pending)
        pending.left_out += 1

    def _read_answers(self, group: list[_Pending[Q, A]], rows: Rows, after: Rows) -> Sequence[A | None]:
        """Read the answers. If that fails there are none, as if they were lost."""
        requests = [each.request for each in group]
        try:
            answers = self._read(requests, rows)
            return self._after.read(requests, answers, after[0]) if self._after is not None and after else answers
        except Exception:
            logger.exception("the answer to a group cannot be read")
            return [None] * len(group)

    def _handle_error(self, group: list[_Pending[Q, A]], error: Exception) -> None:
        """Send the halves of a group if a value caused the error. Leave a single request to the store, and for a while its whole pipeline.

        A group that rolled itself back is no error: the store gets each of its requests alone.
        """
        if isinstance(error, psycopg.Error) and fate(error) == "locked":
            self.locked_at = group[0].answer.get_loop().time()
        is_value = not isinstance(error, psycopg.Error) or (fate(error) == "ours" and error.sqlstate != UNDONE)
        if is_value and len(group) > 1:
            half = len(group) // 2
            self._halves.extendleft((group[half:], group[:half]))
            return
        for pending in group:
            if is_value and pending.reference is not None:
                logger.warning(
                    "attempts of %s are claimed one by one for a while: %s", pending.reference, type(error).__name__
                )
                self._suspects[pending.reference] = pending.answer.get_loop().time() + SUSPECT_S
            _resolve(pending, None)


def _resolve(pending: _Pending[Q, A], answer: A | None) -> None:
    if not pending.answer.done():
        pending.answer.set_result(answer)
