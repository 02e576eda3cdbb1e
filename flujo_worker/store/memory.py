"""The store in memory: the same promises as Postgres, under the same conformance suite.

For tests and the in-process engine. One lock makes each act one commit. Its clock is passed in, so time can be moved.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from flujo_client.address import AttemptKey
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.run import LIVE_ATTEMPT, LIVE_RUN, AttemptRecord, EventRecord, RunRecord
from flujo_client.errors import IdempotencyConflict, RunNotFound
from flujo_worker.domain.transitions import ATTEMPT, RUN, require
from flujo_worker.ports import Broker, Claim, Due, Member, Publish, Refusal, Verdict, publish_nothing
from flujo_worker.store.rows import GRACE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from flujo_client.contract.envelope import Ticket
    from flujo_client.contract.outcome import Event, Fault, Usage
    from flujo_client.contract.run import NewRun
    from flujo_client.pipeline.plan import Plan
    from flujo_client.serial import Packed
    from flujo_worker.domain.values import Decision

GONE_AFTER_S = 5.0
MAX_DOUBLINGS = 5


@dataclass
class _Run:
    ticket: Ticket
    plan: Plan
    input: Packed
    digest: str
    metadata: dict[str, Any]
    created_at: float
    idempotency_key: str | None
    status: str = "queued"
    reason: str | None = None
    fault: Fault | None = None
    output: Packed | None = None
    started_at: float | None = None
    ended_at: float | None = None
    stopped_at: float | None = None
    asked: bool = False

    def move(self, status: str) -> None:
        require(RUN, self.status, status)
        self.status = status

    @property
    def is_live(self) -> bool:
        return self.status in LIVE_RUN


@dataclass
class _Scope:
    output: Packed
    context: Packed | None
    cursor: int = 0
    version: int = 0
    status: str = "open"
    closed_by: str | None = None


@dataclass
class _Attempt:
    key: AttemptKey
    kind: str
    queue: str
    available_at: float
    created_at: float
    guidance: str | None = None
    status: str = "ready"
    reason: str | None = None
    fence: int = 0
    losses: int = 0
    worker: str | None = None
    sent_at: float = 0.0
    sends: int = 0
    output: Packed | None = None
    fault: Fault | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    latency_s: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None

    def move(self, status: str) -> None:
        require(ATTEMPT, self.status, status)
        self.status = status


class MemoryStore:
    """Everything Postgres would remember, in dictionaries.

    Args:
        clock: unix seconds; the store's notion of now.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._runs: dict[str, _Run] = {}
        self._scopes: dict[tuple[str, str], _Scope] = {}
        self._attempts: dict[str, _Attempt] = {}
        self._leases: dict[str, float] = {}
        self._blobs: dict[str, Packed] = {}
        self._plans: dict[str, Plan] = {}
        self._epochs: dict[str, float] = {}
        self._spends: dict[tuple[str, int], Usage] = {}
        self._events: list[EventRecord] = []
        self._swept_at = float("-inf")

    # what the client does

    def record(self, new: NewRun) -> str:
        """Record a run, or find the one that was recorded under its idempotency key.

        Raises:
            IdempotencyConflict: the key stands for other work.
        """
        with self._lock:
            ticket = new.first.ticket
            for run in self._runs.values():
                if new.idempotency_key is not None and (run.ticket.tenant, run.idempotency_key) == (
                    ticket.tenant,
                    new.idempotency_key,
                ):
                    if run.digest != new.digest:
                        raise IdempotencyConflict(f"idempotency key '{new.idempotency_key}' stands for other work")
                    return run.ticket.run
            self._blobs |= {blob.digest: blob for blob in new.blobs}
            self._plans[new.plan.fingerprint] = new.plan
            now = self._clock()
            self._runs[ticket.run] = _Run(
                ticket, new.plan, new.first.input, new.digest, new.metadata, now, new.idempotency_key
            )
            self._scopes[ticket.run, new.first.address] = _Scope(new.first.input, new.first.context)
            key = AttemptKey.parse(new.first.key)
            self._attempts[str(key)] = _Attempt(key, new.first.kind, new.first.queue, now + GRACE_S, now)
            return ticket.run

    def request_cancel(self, run_id: str) -> bool:
        """Ask for a cancel; from now on nothing of the run is claimed or merged. False: it had ended."""
        with self._lock:
            run = self._run(run_id)
            if not run.is_live:
                return False
            run.asked, run.stopped_at = True, run.stopped_at or self._clock()
            return True

    def read_run(self, run_id: str) -> RunRecord:
        """Read a run; raises RunNotFound."""
        with self._lock:
            run = self._run(run_id)
            spent = [usage for (key, _), usage in self._spends.items() if AttemptKey.parse(key).run == run_id]
            return RunRecord(
                id=run_id,
                reference=run.ticket.reference,
                fingerprint=run.ticket.fingerprint,
                name=run.plan.name,
                version=run.plan.version,
                status=run.status,
                created_at=_when(run.created_at),
                tenant=run.ticket.tenant,
                reason=run.reason,
                error=run.fault,
                input=run.input,
                output=run.output,
                context=self._scopes[run_id, ""].context,
                metadata=run.metadata,
                started_at=_when_or_none(run.started_at),
                ended_at=_when_or_none(run.ended_at),
                cancel_requested_at=_when_or_none(run.stopped_at),
                tokens=sum(usage.input_tokens + usage.output_tokens for usage in spent),
                cost_usd=sum(usage.cost_usd for usage in spent),
            )

    def read_attempts(self, run_id: str) -> list[AttemptRecord]:
        """Read a run's attempts in the order they were made."""
        with self._lock:
            return [self._record(row) for row in self._attempts.values() if row.key.run == run_id]

    def read_events(self, run_id: str) -> list[EventRecord]:
        """Read a run's story."""
        with self._lock:
            return [event for event in self._events if event.run_id == run_id]

    def waiting(self) -> list[float]:
        """When the rows that wait to be published become due, in unix seconds."""
        with self._lock:
            rows = [
                row
                for row in self._attempts.values()
                if row.status == "ready" and self._may_run(self._runs[row.key.run])
            ]
            return [row.available_at for row in rows]

    # leases

    def enlist(self, member: Member, lease_s: float, *, old: str | None = None, held: Collection[str] = ()) -> set[str]:
        with self._lock:
            self._leases[member.id] = self._clock() + lease_s
            if old is not None:
                self._leases.pop(old, None)
            rows = [self._attempts[key] for key in held if key in self._attempts]
            adopted = [row for row in rows if row.status == "running" and row.worker in (old, member.id)]
            for row in adopted:
                row.worker = member.id
            return {str(row.key) for row in adopted}

    def renew(self, worker: str, lease_s: float, held: Mapping[str, int]) -> set[str] | None:
        with self._lock:
            if not self._is_leased(worker):
                return None
            self._leases[worker] = self._clock() + lease_s
            return {key for key, fence in held.items() if not self._is_held(key, fence, worker)}

    def disown(self, worker: str, kept: Collection[str], older_s: float) -> set[str]:
        with self._lock:
            before = self._clock() - older_s
            mine = [row for row in self._attempts.values() if (row.status, row.worker) == ("running", worker)]
            gone = [row for row in mine if str(row.key) not in kept and (row.started_at or 0.0) < before]
            for row in gone:
                row.worker = None
            return {str(row.key) for row in gone}

    def retire(self, worker: str) -> None:
        with self._lock:
            self._leases.pop(worker, None)

    # ledger

    def claim(self, key: str, worker: str, *, max_lost: int, may_judge: bool = True) -> Claim:
        with self._lock:
            row = self._attempts.get(key)
            if row is None:
                return Claim(refusal="unknown")
            refusal = self._refusal(row, worker, max_lost if may_judge else 0)
            if refusal is not None:
                return Claim(refusal=refusal, fence=row.fence if refusal == "busy" and row.worker == worker else None)
            row.losses += row.status == "running"
            row.move("running")
            row.fence, row.worker, row.started_at = row.fence + 1, worker, self._clock()
            run = self._runs[row.key.run]
            if run.status == "queued":
                run.move("running")
                run.started_at = self._clock()
            return Claim(fence=row.fence)

    def commit(self, decision: Decision) -> Verdict:
        with self._lock:
            verdict = self._judge(decision)
            envelope, outcome = decision.notice.envelope, decision.notice.outcome
            if verdict != "repeated":
                self.spend(envelope.ticket.run, envelope.key, decision.notice.fence, outcome.usage)
            if verdict == "merged":
                self._apply(decision)
            return verdict

    def spend(self, run: str, key: str, fence: int, usage: Usage) -> None:  # noqa: ARG002 - the key names the run
        if not usage.is_nothing:
            with self._lock:
                self._spends.setdefault((key, fence), usage)

    def park(self, key: str, fence: int, reason: str) -> bool:
        with self._lock:
            row = self._attempts.get(key)
            if row is None or (row.status, row.fence) != ("running", fence):
                return False
            row.move("ready")
            row.worker, row.started_at, row.available_at = None, None, self._clock()
            run = self._runs[row.key.run]
            if run.status == "parked":
                return False
            run.move("parked")
            run.reason = reason
            self._tell(row.key.run, key, "run.parked", "error", {"reason": reason})
            return True

    def stop(self, run: str, status: Literal["cancelled", "expired"], reason: str) -> bool:
        with self._lock:
            row = self._runs.get(run)
            if row is None or not row.is_live:
                return False
            for attempt in self._attempts.values():
                if attempt.key.run == run and attempt.status in LIVE_ATTEMPT:
                    attempt.move("cancelled")
                    attempt.reason, attempt.ended_at = status, self._clock()
            for (owner, _), scope in self._scopes.items():
                if owner == run and scope.status == "open":
                    scope.status, scope.closed_by = "cancelled", status
            row.move(status)
            row.reason, row.ended_at, row.stopped_at = reason, self._clock(), row.stopped_at or self._clock()
            self._tell(run, None, f"run.{status}", "warning", {"reason": reason})
            return True

    def keep(self, blobs: Sequence[Packed]) -> None:
        with self._lock:
            self._blobs |= {blob.digest: blob for blob in blobs}

    def fetch(self, digests: Collection[str]) -> dict[str, Packed]:
        with self._lock:
            return {digest: self._blobs[digest] for digest in digests if digest in self._blobs}

    def plan(self, fingerprint: str) -> Plan | None:
        with self._lock:
            return self._plans.get(fingerprint)

    def note(self, run: str, events: Sequence[Event], *, key: str | None = None) -> None:
        with self._lock:
            for event in events:
                self._tell(run, key, event.name, event.level, event.data)

    # backlog

    def mark_sent(self, ages: Mapping[str, float]) -> None:
        with self._lock:
            for key, age in ages.items():
                row = self._attempts.get(key)
                if row is not None and row.status == "ready":
                    self._mark(row, self._clock() - age)

    def begin_sweep(self, worker: str, every_s: float) -> bool:  # noqa: ARG002 - only Postgres keeps who
        with self._lock:
            if self._swept_at >= self._clock() - every_s:
                return False
            self._swept_at = self._clock()
            return True

    def epoch_start(self, epoch: str) -> float:
        with self._lock:
            return self._epochs.setdefault(epoch, self._clock() if self._epochs else 0.0)

    def queues(self) -> list[str]:
        with self._lock:
            return sorted({row.queue for row in self._attempts.values() if row.status == "queued"})

    def due(
        self, broker: Broker, *, may_judge: bool, max_lost: int, limit: int, publish: Publish = publish_nothing
    ) -> list[Due]:
        with self._lock:
            rows = sorted(self._attempts.values(), key=lambda each: each.available_at)
            whys = [(row, self._why_due(row, broker, may_judge=may_judge, max_lost=max_lost)) for row in rows]
            found = [(row, Due(why, self._envelope(row))) for row, why in whys if why is not None][:limit]
            publish([due for _, due in found])
            for row, _ in found:
                row.losses += row.status == "running"
                self._mark(row, self._clock())
            return [due for _, due in found]

    def poisoned(self, *, max_lost: int, limit: int) -> list[tuple[Envelope, int]]:
        with self._lock:
            rows = [row for row in self._attempts.values() if self._is_lost(row) and row.losses >= max_lost][:limit]
            for row in rows:
                row.fence += 1
            return [(self._envelope(row), row.fence) for row in rows]

    def turned(self, limit: int) -> list[tuple[str, Literal["cancelled", "expired"]]]:
        with self._lock:
            turned = [
                run for run in self._runs.values() if run.is_live and (run.stopped_at is not None or self._is_over(run))
            ]
            return [(run.ticket.run, "cancelled" if run.asked else "expired") for run in turned[:limit]]

    def parked(self, limit: int) -> list[tuple[str, str, str]]:
        with self._lock:
            tickets = [run.ticket for run in self._runs.values() if run.status == "parked"]
            places: defaultdict[tuple[str, str], count[int]] = defaultdict(count)
            fair = sorted(tickets, key=lambda ticket: next(places[ticket.reference, ticket.fingerprint]))
            return [(ticket.run, ticket.reference, ticket.fingerprint) for ticket in fair[:limit]]

    def unpark(self, run: str) -> bool:
        with self._lock:
            row = self._runs.get(run)
            if row is None or row.status != "parked":
                return False
            row.move("running")
            row.reason = None
            self._tell(run, None, "run.unparked", "info", {})
            return True

    # inside

    def _run(self, run_id: str) -> _Run:
        if run_id not in self._runs:
            raise RunNotFound(f"no run '{run_id}'")
        return self._runs[run_id]

    def _is_leased(self, worker: str | None) -> bool:
        return worker is not None and self._leases.get(worker, 0.0) > self._clock()

    def _is_held(self, key: str, fence: int, worker: str) -> bool:
        row = self._attempts.get(key)
        if row is None or self._runs[row.key.run].stopped_at is not None:
            return False
        return (row.status, row.fence, row.worker) == ("running", fence, worker)

    def _is_over(self, run: _Run) -> bool:
        return run.ticket.deadline is not None and run.ticket.deadline <= self._clock()

    def _may_run(self, run: _Run) -> bool:
        return run.status in ("queued", "running") and run.stopped_at is None and not self._is_over(run)

    def _is_lost(self, row: _Attempt) -> bool:
        run = self._runs[row.key.run]
        return row.status == "running" and not self._is_leased(row.worker) and run.is_live and run.stopped_at is None

    def _refusal(self, row: _Attempt, worker: str, max_lost: int) -> Refusal | None:
        run = self._runs[row.key.run]
        if row.status not in LIVE_ATTEMPT:
            return "ended"
        if run.status == "parked":
            return "parked"
        if not self._may_run(run):
            return "stopped"
        if not self._is_leased(worker):
            return "unleased"
        if row.status == "running" and (self._is_leased(row.worker) or row.losses >= max_lost):
            return "busy"
        return None

    def _judge(self, decision: Decision) -> Verdict:
        notice = decision.notice
        row = self._attempts.get(notice.envelope.key)
        if row is None:
            return "stale"
        run = self._runs[row.key.run]
        if row.status == decision.close.status and row.fence == notice.fence:
            return "repeated"
        if run.stopped_at is not None or run.status in ("cancelled", "expired"):
            return "stopped"
        scope = self._scopes[row.key.run, row.key.address]
        holds = (row.status, row.fence, scope.status) == ("running", notice.fence, "open")
        return "merged" if holds and scope.version == notice.envelope.version else "stale"

    def _apply(self, decision: Decision) -> None:
        now, notice, outcome = self._clock(), decision.notice, decision.notice.outcome
        row = self._attempts[notice.envelope.key]
        row.move(decision.close.status)
        row.reason, row.output, row.fault, row.ended_at = decision.close.reason, outcome.output, outcome.fault, now
        row.metadata, row.latency_s = outcome.metadata, outcome.latency_s
        scope, move = self._scopes[row.key.run, row.key.address], decision.move
        scope.cursor, scope.status, scope.version = move.cursor, move.status, scope.version + move.merges
        scope.output, scope.context = move.output or scope.output, move.context or scope.context
        scope.closed_by = str(row.key) if move.status != "open" else None
        following = decision.next
        if following is not None:
            key = AttemptKey(row.key.run, following.address, following.step, following.number)
            available = now + (following.delay_s or GRACE_S)
            self._attempts[str(key)] = _Attempt(
                key, following.kind, following.queue, available, now, following.guidance
            )
        for event in (*outcome.events, *decision.events):
            self._tell(row.key.run, str(row.key), event.name, event.level, event.data)
        if decision.end is not None:
            run = self._runs[row.key.run]
            run.move(decision.end.status)
            run.reason, run.fault, run.output, run.ended_at = (
                decision.end.reason,
                decision.end.fault,
                decision.end.output,
                now,
            )

    def _mark(self, row: _Attempt, sent_at: float) -> None:
        row.move("queued")
        row.sent_at, row.sends = sent_at, row.sends + 1

    def _why_due(self, row: _Attempt, broker: Broker, *, may_judge: bool, max_lost: int) -> str | None:
        if not self._may_run(self._runs[row.key.run]):
            return None
        now = self._clock()
        if row.status == "ready":
            return "ready" if row.available_at <= now else None
        if row.status == "running":
            return "lost" if may_judge and self._is_lost(row) and row.losses < max_lost else None
        if row.status != "queued":
            return None
        if row.sent_at < broker.epoch_start:
            return "epoch"
        patience = GONE_AFTER_S * 2 ** (min(row.sends, MAX_DOUBLINGS + 1) - 1)
        if row.queue not in broker.heads or row.sent_at >= now - patience:
            return None
        head = broker.heads[row.queue]
        return "gone" if head is None or head > row.sent_at else None

    def _envelope(self, row: _Attempt) -> Envelope:
        scope = self._scopes[row.key.run, row.key.address]
        return Envelope(
            ticket=self._runs[row.key.run].ticket,
            address=row.key.address,
            step=row.key.step,
            number=row.key.number,
            version=scope.version,
            input=scope.output,
            context=scope.context,
            guidance=row.guidance,
            queue=row.queue,
        )

    def _tell(self, run: str, key: str | None, name: str, level: str, data: dict[str, Any]) -> None:
        self._events.append(EventRecord(len(self._events) + 1, _when(self._clock()), run, name, level, key, data))

    def _record(self, row: _Attempt) -> AttemptRecord:
        spent = [usage for (key, _), usage in self._spends.items() if key == str(row.key)]
        return AttemptRecord(
            key=str(row.key),
            address=row.key.address,
            step=row.key.step,
            number=row.key.number,
            kind=row.kind,
            status=row.status,
            created_at=_when(row.created_at),
            reason=row.reason,
            worker=row.worker,
            fence=row.fence,
            sends=row.sends,
            output=row.output,
            fault=row.fault,
            metadata=row.metadata,
            latency_s=row.latency_s,
            started_at=_when_or_none(row.started_at),
            ended_at=_when_or_none(row.ended_at),
            tokens=sum(usage.input_tokens + usage.output_tokens for usage in spent),
            cost_usd=sum(usage.cost_usd for usage in spent),
        )


def _when(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _when_or_none(at: float | None) -> datetime | None:
    return None if at is None else _when(at)
