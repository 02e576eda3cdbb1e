"""The tables of the store in memory, and what every act asks of them. Nothing here changes a row but to add one."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flujo_client.address import AttemptKey
from flujo_client.contract.approval import Approval
from flujo_client.contract.code import CodeVersion
from flujo_client.contract.envelope import Envelope, RunHeader
from flujo_client.contract.limits import Guard, GuardRow
from flujo_client.contract.outcome import Usage
from flujo_client.contract.records import CODE, CorrectionRecord, EventRecord, RunSummary
from flujo_client.errors import IdempotencyConflict, RunNotFound
from flujo_client.pipeline.context_info import Fields
from flujo_client.plan.plan import Plan
from flujo_client.serial import Packed
from flujo_worker.domain.budget import Budget
from flujo_worker.ports import Member
from flujo_worker.store.memory.rows import (
    ClaimId,
    StoredAttempt,
    StoredPermit,
    StoredReservation,
    StoredRun,
    StoredScope,
    TakenCall,
    when,
)


class Tables:
    """Everything Postgres would remember, in dictionaries. One lock makes each act one commit.

    Args:
        clock: unix seconds; the store's notion of now.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._runs: dict[str, StoredRun] = {}
        self._scopes: dict[tuple[str, str], StoredScope] = {}
        self._children: defaultdict[tuple[str, str], list[StoredScope]] = defaultdict(list)
        self._attempts: dict[str, StoredAttempt] = {}
        self._rows_at: defaultdict[tuple[str, str], list[StoredAttempt]] = defaultdict(list)
        self._contexts: dict[tuple[str, int], Packed | None] = {}
        self._leases: dict[str, float] = {}
        self._members: dict[str, Member] = {}
        self._blobs: dict[str, Packed] = {}
        self._touched: dict[str, float] = {}
        self._plans: dict[str, Plan] = {}
        self._references: dict[str, str] = {}
        self._loaded: dict[str, set[str]] = {}
        self._since: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._code: dict[str, CodeVersion] = {}
        self._step_code: dict[str, dict[str, str]] = {}
        self._context_fields: dict[str, dict[str, Fields]] = {}
        self._epochs: dict[str, float] = {}
        self._summaries: dict[str, RunSummary] = {}
        self._spends: dict[ClaimId, Usage] = {}
        self._budgets: dict[str, Budget] = {}
        self._reservations: dict[str, dict[str, StoredReservation]] = {}
        self._events: list[EventRecord] = []
        self._last_event = 0
        self._guards: dict[tuple[Guard, str], GuardRow] = {}
        self._limits: dict[str, int] = {}
        self._permits: dict[str, StoredPermit] = {}
        self._last_turn = 0
        self._corrections: list[CorrectionRecord] = []
        self._owed: dict[tuple[str, str, str], TakenCall] = {}
        self._swept_at = self._pruned_at = self._marked_at = float("-inf")

    def _run(self, run_id: str) -> StoredRun:
        if run_id not in self._runs:
            raise RunNotFound(f"no run '{run_id}'")
        return self._runs[run_id]

    def _record_plan(self, reference: str, plan: Plan) -> None:
        self._plans[plan.fingerprint] = plan
        self._references.setdefault(plan.fingerprint, reference)

    def _add_scope(self, run: str, scope: StoredScope) -> None:
        self._scopes[run, scope.address] = scope
        if scope.parent is not None:
            self._children[run, scope.parent].append(scope)

    def _add_attempt(self, row: StoredAttempt) -> None:
        self._attempts[str(row.key)] = row
        self._rows_at[row.key.run, row.key.address].append(row)
        if row.status == "paused":
            self._owe(row.key.run, "on_pause_requested", str(row.key))

    def _owe(self, run: str, payload: str, attempt: str = "") -> None:
        """Record a hook call to be made, in a pipeline that has any hooks."""
        if self._runs[run].plan.hooks:
            self._owed.setdefault((run, payload, attempt), TakenCall())

    def _keep(self, blobs: Iterable[Packed]) -> None:
        """Store large values; those that are there are touched."""
        for blob in blobs:
            self._blobs[blob.digest], self._touched[blob.digest] = blob, self._clock()

    def _attempts_of(self, run: str) -> Iterator[StoredAttempt]:
        return (row for row in self._attempts.values() if row.key.run == run)

    def _family_of(self, run: str) -> Iterator[StoredAttempt]:
        """Yield the attempts of a run and its child runs."""
        yield from self._attempts_of(run)
        for child in self._child_runs_of(run):
            yield from self._family_of(child.ticket.run)

    def _approval(self, row: StoredAttempt) -> Approval:
        """Return a question as clients read it."""
        run = self._runs[row.key.run]
        status = "cancelled" if run.is_live and run.stopped_at is not None else run.status
        status = "expired" if run.is_live and self._is_over(run) else status
        return row.approval(run.name, status, self._clock())

    def _scopes_of(self, run: str) -> Iterator[StoredScope]:
        return (scope for (owner, _), scope in self._scopes.items() if owner == run)

    def _children_of(self, run: str, address: str) -> list[StoredScope]:
        return sorted(self._children.get((run, address), ()), key=lambda scope: scope.place)

    def _child_runs_of(self, run: str, address: str | None = None) -> list[StoredRun]:
        """Return the child runs of a run, or those that were begun at one place in it."""
        children = [each for each in self._runs.values() if each.parent is not None and each.parent[0] == run]
        return [each for each in children if address is None or each.parent == (run, address)]

    def _spent_by(self, run: str) -> list[Usage]:
        """Return what a run has spent, with its child runs except those in the background."""
        own = [usage for (key, _, _), usage in self._spends.items() if AttemptKey.parse(key).run == run]
        waited_for = [child for child in self._child_runs_of(run) if not child.is_background]
        return own + [usage for child in waited_for for usage in self._spent_by(child.ticket.run)]

    def _named(self, ticket: RunHeader, digest: str) -> str | None:
        """Return the run that was recorded under an id; raise IdempotencyConflict if it is other work."""
        run = self._runs.get(ticket.run)
        if run is None:
            return None
        if (run.ticket.tenant, run.digest) != (ticket.tenant, digest):
            raise IdempotencyConflict(f"run {ticket.run} exists, and is other work")
        return ticket.run

    def _under(self, tenant: str, key: str | None, digest: str) -> str | None:
        """Return the run that was recorded under an idempotency key; raise IdempotencyConflict if it is other work."""
        for run in self._runs.values() if key is not None else ():
            if (run.ticket.tenant, run.idempotency_key) == (tenant, key):
                if run.digest != digest:
                    raise IdempotencyConflict(f"idempotency key '{key}' is already used for other work")
                return run.ticket.run
        return None

    def _is_leased(self, worker: str | None) -> bool:
        return worker is not None and self._leases.get(worker, 0.0) > self._clock()

    def _is_over(self, run: StoredRun) -> bool:
        return run.ticket.deadline is not None and run.ticket.deadline <= self._clock()

    def _may_run(self, run: StoredRun) -> bool:
        return run.status in ("queued", "running") and run.stopped_at is None and not self._is_over(run)

    def _replace(self, run: str, reason: str) -> None:
        """Cancel a run to make room for another one."""
        row = self._runs[run]
        row.asked, row.note, row.stopped_at = True, row.note or reason, row.stopped_at or self._clock()
        self._add_event(run, None, "run.cancel_requested", "warning", {"reason": row.note})

    def _may_merge(self, run: StoredRun) -> bool:
        return run.is_live and run.stopped_at is None

    def _is_lost(self, row: StoredAttempt) -> bool:
        return row.status == "running" and not self._is_leased(row.worker) and self._may_merge(self._runs[row.key.run])

    def _mark(self, row: StoredAttempt, sent_at: float) -> None:
        row.move("queued")
        row.sent_at, row.sends = sent_at, row.sends + 1

    def _envelope(self, row: StoredAttempt) -> Envelope:
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
            kind=row.kind,
            lanes=dict(scope.lanes),
            code=tuple(scope.metadata.get(CODE, ())),
        )

    def _add_event(
        self, run: str | None, key: str | None, name: str, level: str, data: dict[str, Any], at: float | None = None
    ) -> None:
        number = self._last_event = self._last_event + 1
        event_at = when(self._clock() if at is None else at)
        self._events.append(EventRecord(number, event_at, run, name, level, key, data, f"0-{number}"))
