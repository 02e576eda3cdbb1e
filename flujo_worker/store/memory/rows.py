"""The rows of the store in memory, each with the transitions it allows and how it reads to others. No lock, no clock."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from decimal import Decimal
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from flujo_client.address import AttemptKey
from flujo_client.contract.admission import Gate
from flujo_client.contract.approval import Approval, state_of
from flujo_client.contract.code import AwaitedCode
from flujo_client.contract.envelope import AttemptKind, RunHeader
from flujo_client.contract.outcome import Fault, Usage
from flujo_client.contract.records import (
    LIVE_RUN,
    OPEN_ATTEMPT,
    AttemptRecord,
    RunRecord,
    ScopeRecord,
    without_code,
)
from flujo_client.plan.plan import Plan
from flujo_client.serial import Packed
from flujo_worker.domain.budget import Amount
from flujo_worker.domain.transitions import ATTEMPT, RUN, SCOPE, require
from flujo_worker.domain.units import BatchedRequest
from flujo_worker.domain.values import ChildRun, ChildRunRow, EndRun, ScopeRow, ScopeStatus, UpdateScope, copied
from flujo_worker.ports import HumanAnswer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
GONE_AFTER_S = 3.0
MAX_DOUBLINGS = 5


@dataclass
class StoredRun:
    ticket: RunHeader
    plan: Plan
    input: Packed
    digest: str
    metadata: dict[str, Any]
    created_at: float
    idempotency_key: str | None
    name: str
    parent_run: str | None = None
    parent_address: str | None = None
    launched_with: Packed | None = None
    status: str = "queued"
    reason: str | None = None
    fault: Fault | None = None
    output: Packed | None = None
    started_at: float | None = None
    ended_at: float | None = None
    stopped_at: float | None = None
    asked: bool = False
    note: str | None = None
    ended_by: str | None = None
    forked_from: str | None = None
    from_step: str | None = None
    retried_as: str | None = None
    awaited: AwaitedCode | None = None
    unparked_by: str | None = None
    gates: tuple[Gate, ...] = ()
    parked: dict[str, Any] | None = None
    failed_key: str | None = None
    replaced_by: str | None = None

    def child(self, begun: ChildRun, now: float) -> StoredRun:
        """Make the run that begins as a step of this one."""
        first = begun.first
        run = StoredRun(begun.ticket, self.plan, first.input, first.input.digest, {}, now, None, begun.name)
        run.parent_run, run.parent_address = self.ticket.run, begun.parent_address
        run.launched_with = first.context if run.is_background else None
        return run

    @property
    def is_background(self) -> bool:
        """Return whether it is a child run that no place in its parent waits for."""
        return self.parent_run is not None and self.parent_address is None

    @property
    def is_live(self) -> bool:
        return self.status in LIVE_RUN

    def move(self, status: str) -> None:
        require(RUN, self.status, status)
        self.status = status

    def end(self, end: EndRun, now: float) -> None:
        self.move(end.status)
        self.reason, self.fault, self.output, self.ended_at = end.reason, end.fault, end.output, now
        self.failed_key = end.failed_key

    def record(self, context: Packed | None, spent: Sequence[Usage]) -> RunRecord:
        limits, stopped_at = (self.ticket.limits or {}).get("limits"), when_or_none(self.stopped_at)
        own = {"id": self.ticket.run, "version": self.plan.version, "error": self.fault, "context": context}
        rest = {"cancel_requested_at": stopped_at, "limits": limits, **totals(spent)}
        return recorded(RunRecord, self, self.ticket, **own, **rest)

    def child_row(self, context: Packed | None) -> ChildRunRow | None:
        """Return the row as its parent's join reads it; None for a run that no run waits for."""
        parent, at = self.parent_run, self.parent_address
        if parent is None or at is None:
            return None
        output = self.output or self.input
        return ChildRunRow(self.ticket.run, parent, at, self.status, self.reason, self.fault, output, context)


@dataclass
class StoredScope:
    address: str
    output: Packed
    context: Packed | None
    opened_at: float
    parent: str | None = None
    kind: str = "sequence"
    step: str | None = None
    name: str | None = None
    place: int = 0
    lanes: dict[str, int] = field(default_factory=dict)
    cursor: int = 0
    version: int = 0
    status: ScopeStatus = "open"
    waiting: bool = False
    aborted: bool = False
    patch: Packed | None = None
    fault: Fault | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    closed_by: str | None = None
    closed_at: float | None = None

    @classmethod
    def opened(cls, opening: ScopeRow, lanes: dict[str, int], by: str, now: float) -> StoredScope:
        """Make the scope that a decision opens; it may be closed already."""
        own = {"opened_at": now, "lanes": lanes, "metadata": dict(opening.metadata), "status": "open", "patch": None}
        scope = copied(cls, opening, **own, aborted=False, closed_by=None, closed_at=None)
        if opening.status != "open":
            scope.close(opening.status, by, now)
        return scope

    @property
    def is_open(self) -> bool:
        return self.status == "open"

    def move(self, move: UpdateScope, by: str, now: float) -> None:
        self.cursor, self.version = move.cursor, self.version + move.merges
        self.output, self.patch = move.output or self.output, move.patch or self.patch
        self.context = None if move.drops_context else move.context or self.context
        self.fault, self.metadata = move.fault or self.fault, {**self.metadata, **move.metadata}
        if move.status != "open":
            self.close(move.status, by, now)

    def close(self, status: ScopeStatus, by: str, now: float) -> None:
        require(SCOPE, self.status, status)
        self.status, self.closed_by, self.closed_at = status, by, now

    def wind_down(self, by: str, now: float) -> None:
        """Close the scope from outside. Only the root retains its context."""
        self.close("cancelled", by, now)
        self.context = self.context if self.parent is None else None

    def row(self, *, context: bool = True) -> ScopeRow:
        """Return the row as deciding reads it."""
        own = {"context": self.context if context else None, "waiting": False}
        return copied(ScopeRow, self, lanes=dict(self.lanes), metadata=dict(self.metadata), **own)

    def record(self, spent: Sequence[Usage]) -> ScopeRecord:
        """Return the row as clients read it, with what the child run that was begun here has spent."""
        own = {"metadata": without_code(self.metadata), "lanes": dict(self.lanes), **totals(spent)}
        is_result = self.status == "succeeded" and self.parent is not None
        return recorded(ScopeRecord, self, context=self.context if is_result else None, **own)


@dataclass(slots=True)
class StoredEvent:
    """An event that was sent to a run; `is_over`: it was given to a step, or its run has ended."""

    run: str
    name: str
    id: str
    value: Packed
    at: float
    is_over: bool = False


@dataclass
class StoredAttempt:
    key: AttemptKey
    kind: AttemptKind
    queue: str
    available_at: float
    created_at: float
    guidance: str | None = None
    question: dict[str, Any] | None = None
    answer: HumanAnswer | None = None
    status: str = "ready"
    reason: str | None = None
    fence: int = 0
    claim_id: str | None = None
    losses: int = 0
    losses_alone: int = 0
    suspicions: int = 0
    alone: bool = False
    worker: str | None = None
    sent_at: float = 0.0
    sends: int = 0
    output: Packed | None = None
    fault: Fault | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    answers: tuple[dict[str, Any], ...] = ()
    latency_s: float = 0.0
    code: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    waits_for: str | None = None
    waits_since: float | None = None
    room: str | None = None
    loss: dict[str, Any] | None = None
    input: Packed | None = None
    model_answer: str | None = None
    units_from: int | None = None
    pauses: int = 0

    @property
    def is_live(self) -> bool:
        return self.status in OPEN_ATTEMPT

    @property
    def event(self) -> str | None:
        """Return the event that it waits for; None where it waits for none."""
        return (self.question or {}).get("event")

    @property
    def is_held(self) -> bool:
        return self.status == "ready" and self.available_at == inf

    @property
    def patience_s(self) -> float:
        """Return the seconds after which its message is taken for lost."""
        return float(GONE_AFTER_S * 2 ** (min(self.sends, MAX_DOUBLINGS + 1) - 1))

    def is_under(self, fence: int | None, claim_id: str | None) -> bool:
        """Return whether this is its last claim; without an id, whether this is its fence."""
        return self.fence == fence and claim_id in (None, self.claim_id)

    def move(self, status: str) -> None:
        require(ATTEMPT, self.status, status)
        self.status = status

    @property
    def is_own_loss(self) -> bool:
        """Return whether losing it now is its own fault: it ran alone, or a living process disowned it."""
        return self.worker is None or self.alone

    def lose(self, now: float) -> None:
        self.losses, self.losses_alone = self.losses + 1, self.losses_alone + self.is_own_loss
        self.note_loss(now)

    def note_loss(self, now: float, how: str | None = None, *, is_gone: bool = True) -> None:
        """Record the lost worker, or that a live one gave the attempt up, unless that is recorded already."""
        if self.worker is not None:
            self.loss = {"worker": self.worker if is_gone else None, "how": how, "at": when(now).isoformat()}

    def wait_no_more(self) -> None:
        """Clear its earlier wait."""
        self.waits_for = self.waits_since = None

    def is_poison(self, max_lost: int) -> bool:
        """Return whether losing it now is one loss more than is allowed."""
        return self.is_own_loss and self.losses_alone >= max_lost

    def cancel(self, reason: str, now: float) -> None:
        self.move("cancelled")
        self.reason, self.ended_at = reason, now

    def approval(self, pipeline: str, run_status: str, now: float) -> Approval:
        """Return the row as clients read its question."""
        question, answer = self.question or {}, self.answer
        is_open = self.status == "paused"
        is_over = is_open and self.available_at <= now
        return Approval(
            run_id=self.key.run,
            pipeline=pipeline,
            address=self.key.address,
            step=self.key.step,
            key=str(self.key),
            message=question["message"],
            schema=question["schema"],
            asked_at=when(self.created_at),
            run_status=run_status,
            state=state_of(self.status, run_status, is_answered=answer is not None, is_over=is_over),
            expires_at=when(self.available_at) if is_open and self.available_at < inf else None,
            actor=question.get("actor"),
            refused=question.get("refused"),
            answered_by=answer.actor if answer else None,
            note=answer.note if answer else None,
            answered_at=when(answer.at) if answer else None,
        )

    def record(self, spent: Sequence[Usage], reserved: Collection[StoredReservation] = ()) -> AttemptRecord:
        return recorded(
            AttemptRecord,
            self,
            self.key,
            key=str(self.key),
            waits_since=when_or_none(self.waits_since),
            **totals(spent),
            estimate_cost_usd=max((float(each.amount.usd) for each in reserved), default=None),
            estimate_tokens=max((each.amount.tokens for each in reserved), default=None),
            quota_before_usd=min((float(each.usd) for each in reserved if each.usd is not None), default=None),
            quota_before_tokens=min((each.tokens for each in reserved if each.tokens is not None), default=None),
        )


@dataclass
class StoredReservation:
    """One row of the reservations; `usd` and `tokens` are what the budget had left before it."""

    amount: Amount
    usd: Decimal | None = None
    tokens: int | None = None
    is_held: bool = True


@dataclass(slots=True)
class StoredPermit:
    """An attempt that has asked for a permit: under `fence` it was let through, without one it waits."""

    name: str
    turn: int
    fence: int | None = None
    offered_at: float = -inf


@dataclass
class StoredWait:
    """One row of the runs that wait, at one of their gates."""

    gate: Gate
    arrived: int
    not_before: float


@dataclass
class TakenCall:
    """One row of the pending hook calls: who has taken it, whether it runs alone, and how often it was lost."""

    worker: str | None = None
    is_alone: bool = False
    losses: int = 0
    losses_alone: int = 0


def recorded(kind: type[T], *rows: object, **own: Any) -> T:
    """Make a record of the fields that rows have under the same names, with times as datetimes; the first row that has one counts."""
    found = {
        name: next(getattr(row, name) for row in rows if hasattr(row, name))
        for name in (each.name for each in fields(kind) if each.init)
        if name not in own and any(hasattr(row, name) for row in rows)
    }
    times = {name: when_or_none(at) for name, at in found.items() if name.endswith("_at")}
    return kind(**found | times | own)


def totals(spent: Sequence[Usage]) -> dict[str, Any]:
    """Sum tokens and US dollars, as records name them."""
    tokens = sum(usage.input_tokens + usage.output_tokens for usage in spent)
    return {"tokens": tokens, "cost_usd": sum(usage.cost_usd for usage in spent)}


def when(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def when_or_none(at: float | None) -> datetime | None:
    return None if at is None else when(at)


@dataclass
class StoredRequest:
    """A request and its state."""

    given: BatchedRequest
    asked_at: float
    batch: str | None = None
    result: Packed | None = None

    def waits(self, pool: str, now: float) -> bool:
        """Return whether it may be taken into a batch."""
        is_free = self.batch is None and self.result is None
        return is_free and self.given.pool == pool and self.asked_at + self.given.deadline_s > now
