"""The store in memory: the same promises as Postgres, under the same conformance suite.

For tests and the in-process engine. One lock makes each act one commit. Its clock is passed in, so time can be moved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Literal

from flujo_client.address import AttemptKey
from flujo_client.contract.approval import Approval
from flujo_client.contract.code import AwaitedCode
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Usage
from flujo_client.contract.records import (
    AttemptRecord,
    CorrectionRecord,
    EventRecord,
    NewRun,
    NoticeRecord,
    Recording,
    RunRecord,
    ScopeRecord,
)
from flujo_client.serial import Packed
from flujo_worker.ports import (
    BrokerSnapshot,
    Damaged,
    Due,
    HumanAnswer,
    Member,
    Publish,
    Records,
    Renewal,
    ignore,
    publish_nothing,
)
from flujo_worker.store.memory.code import CodeInMemory
from flujo_worker.store.memory.forks import ForksInMemory
from flujo_worker.store.memory.hook_calls import HookCallsInMemory
from flujo_worker.store.memory.model_guards import ModelGuardsInMemory
from flujo_worker.store.memory.permits import PermitsInMemory
from flujo_worker.store.memory.plan_moves import PlanMovesInMemory
from flujo_worker.store.memory.retention import RetentionInMemory
from flujo_worker.store.memory.rows import StoredAttempt, StoredRun, StoredScope
from flujo_worker.store.shared_rules import GRACE_S, HANDED_BACK_MOST, HANDED_BACK_OFTEN, fairly

GONE_AFTER_S = 5.0
MAX_DOUBLINGS = 5


class MemoryStore(
    ForksInMemory,
    HookCallsInMemory,
    PlanMovesInMemory,
    CodeInMemory,
    RetentionInMemory,
    PermitsInMemory,
    ModelGuardsInMemory,
):
    """Everything Postgres would remember, in dictionaries.

    Args:
        clock: unix seconds; the store's notion of now.
    """

    # what the client does

    def record(self, new: NewRun) -> str:
        """Record a run, or find the one that was recorded under its id or its idempotency key, or that its singleton has under way.

        Raises:
            IdempotencyConflict: the id or the key is in use for other work.
            AdmissionRefused: a gate without room refuses what comes beyond it.
        """
        with self._lock:
            found = self._named(new.first.ticket, new.digest) or self._under(
                new.first.ticket.tenant, new.idempotency_key, new.digest
            )
            if found is not None:
                return found
            holder = self._live_holder(new.gates)
            if holder is not None:
                return holder
            ticket, now = new.first.ticket, self._clock()
            self._keep(new.blobs)
            self._record_plan(ticket.reference, new.plan)
            self._since.setdefault(new.plan.fingerprint, now)
            self._runs[ticket.run] = StoredRun(
                ticket, new.plan, new.first.input, new.digest, new.metadata, now, new.idempotency_key, new.plan.name
            )
            self._runs[ticket.run].gates = new.gates
            self._add_scope(ticket.run, StoredScope(new.first.address, new.first.input, new.first.context, now))
            self._contexts[ticket.run, 0] = new.first.context
            key = AttemptKey.parse(new.first.key)
            first = StoredAttempt(key, new.first.kind, new.first.queue, now + GRACE_S, now)
            self._add_attempt(first)
            self._enter(self._runs[ticket.run], first)
            return ticket.run

    def request_cancel(self, run_id: str, reason: str | None = None) -> bool:
        """Request a cancel, with a reason; from now on nothing of the run is claimed or merged. False: it had ended."""
        with self._lock:
            run = self._run(run_id)
            if not run.is_live:
                return False
            run.asked, run.note, run.stopped_at = True, run.note or reason, run.stopped_at or self._clock()
            return True

    def read_run(self, run_id: str) -> RunRecord:
        """Read a run; raises RunNotFound."""
        with self._lock:
            run = self._run(run_id)
            record = run.record(self._scopes[run_id, run.ticket.root].context, self._spent_by(run_id))
            waits = self._waiting_runs.get(run_id)
            return replace(
                record, status=self.status(run_id), waits_for=None if waits is None else self._waits_for(waits)
            )

    def read_attempts(self, run_id: str) -> list[AttemptRecord]:
        """Read a run's attempts in the order they were made."""
        with self._lock:
            spent = defaultdict(list)
            for (key, _, _), usage in self._spends.items():
                spent[key].append(usage)
            held = self._reservations
            return [
                row.record(spent[str(row.key)], held.get(str(row.key), {}).values())
                for row in self._attempts_of(run_id)
            ]

    def read_scopes(self, run_id: str) -> list[ScopeRecord]:
        """Read a run's scopes in the order they were opened."""
        with self._lock:
            found = [scope.record(self._spent_at(run_id, scope.address)) for scope in self._scopes_of(run_id)]
            return sorted(found, key=lambda scope: (scope.opened_at, scope.address))

    def records(self, run: str) -> Records:
        with self._lock:
            return Records(self.read_run(run), self.read_attempts(run), self.read_scopes(run))

    def read_children(self, run_id: str) -> list[RunRecord]:
        """Read a run's child runs in the order they were begun."""
        with self._lock:
            return [self.read_run(child.ticket.run) for child in self._child_runs_of(run_id)]

    def _spent_at(self, run_id: str, address: str) -> list[Usage]:
        children = self._child_runs_of(run_id, address)
        return [usage for child in children for usage in self._spent_by(child.ticket.run)]

    def read_questions(self, run_id: str) -> list[Approval]:
        """Read the questions to people of a run and its child runs, open and closed, in the order they were asked."""
        with self._lock:
            rows = [row for row in self._family_of(run_id) if row.question is not None]
            return [self._approval(row) for row in sorted(rows, key=lambda row: row.created_at)]

    def answer(self, key: str, value: Packed, *, actor: str | None = None, note: str | None = None) -> bool:
        """Answer a question; False when it is not open."""
        with self._lock:
            row, now = self._attempts.get(key), self._clock()
            if row is None or row.status != "paused" or row.available_at <= now:
                return False
            run = self._runs[row.key.run]
            if not self._may_merge(run) or self._is_over(run):
                return False
            row.move("ready")
            row.available_at, row.answer = now, HumanAnswer(value, actor, note, now)
            self._add_event(
                row.key.run, key, "run.answered", "info", {"step": row.key.step, "actor": actor, "note": note}
            )
            return True

    def status(self, run_id: str) -> str:
        """Return a run's visible status: `paused` with an open question, in it or its child runs, and nothing that can run."""
        with self._lock:
            status, rows = self._run(run_id).status, self._family_of(run_id)
            is_paused = {row.status for row in rows if row.is_live and not row.is_held} == {"paused"}
            return "paused" if is_paused and status in ("queued", "running") else status

    def read_events(self, run_id: str) -> list[EventRecord]:
        """Read a run's events."""
        with self._lock:
            return [event for event in self._events if event.run_id == run_id]

    def read_recording(self, run_id: str) -> Recording:
        """Read what a run began with, for its replay."""
        with self._lock:
            run = self._run(run_id)
            ticket, has_context = run.ticket, self._scopes[run_id, run.ticket.root].context is not None
            return Recording(
                id=run_id,
                status=run.status,
                reference=ticket.reference,
                fingerprint=ticket.fingerprint,
                queue=ticket.queue,
                tenant=ticket.tenant,
                root=ticket.root,
                from_step=run.forked[1] if run.forked else None,
                plan=run.plan,
                has_context=has_context,
            )

    def read_notices(self, run_id: str) -> list[NoticeRecord]:
        """Read the outcomes that a run's coordinators received, in the order of their commits."""
        with self._lock:
            concluded = [row for row in self._attempts_of(run_id) if "taken_over_from" not in row.metadata]
            rows = sorted(concluded, key=lambda row: inf if row.ended_at is None else row.ended_at)
            made = {str(row.key): number for number, row in enumerate(concluded, 1)}
            return [row.notice(made[str(row.key)]) for row in rows]

    def read_system_events(self) -> list[EventRecord]:
        """Read the events of workers."""
        with self._lock:
            return [event for event in self._events if event.run_id is None]

    def read_corrections(self, run_id: str) -> list[CorrectionRecord]:
        """Read a run's entries in the correction ledger."""
        with self._lock:
            return [each for each in self._corrections if each.run_id == run_id]

    def waiting(self) -> list[float]:
        """Return when the rows that wait to be published become due, in unix seconds."""
        with self._lock:
            ready = [row for row in self._attempts.values() if row.status == "ready" and row.available_at < inf]
            rows = [row for row in ready if row.key.run not in self._waiting_runs]
            due = [row.available_at for row in rows if self._may_run(self._runs[row.key.run])]
            return due + self._admissible_at()

    def ends(self) -> list[float]:
        """Return when open questions expire and live runs pass their deadline, in unix seconds."""
        with self._lock:
            live = [run for run in self._runs.values() if self._may_merge(run)]
            asked = [row for row in self._attempts.values() if row.status == "paused" and row.available_at < inf]
            expiries = [row.available_at for row in asked if self._may_merge(self._runs[row.key.run])]
            return expiries + [run.ticket.deadline for run in live if run.ticket.deadline is not None]

    def gone_at(self) -> list[float]:
        """Return when messages that are out are taken for lost if no queue holds them, in unix seconds."""
        with self._lock:
            queued = [row for row in self._attempts.values() if row.status == "queued"]
            return [row.sent_at + _patience_s(row) for row in queued if self._may_run(self._runs[row.key.run])]

    # leases

    def register_worker(
        self, member: Member, lease_s: float, *, old: str | None = None, held: Collection[str] = ()
    ) -> set[str]:
        with self._lock:
            self._leases[member.id] = self._clock() + lease_s
            self._members[member.id] = member
            self._started.setdefault(member.id, self._started.get(old or "", self._clock()))
            if old is not None:
                self._leases.pop(old, None)
                self._loaded[member.id] = self._loaded.pop(old, set())
            rows = [self._attempts[key] for key in held if key in self._attempts]
            running = [row for row in rows if row.status == "running" and row.worker in (old, member.id)]
            crowded = self._without_place({str(row.key) for row in running})
            adopted = [row for row in running if str(row.key) not in crowded]
            for row in adopted:
                row.worker = member.id
            return {str(row.key) for row in adopted}

    def renew(self, worker: str, lease_s: float, held: Mapping[str, int]) -> Renewal | None:
        with self._lock:
            if not self._is_leased(worker):
                return None
            self._leases[worker] = self._clock() + lease_s
            return Renewal(self.lost_among(worker, held))

    def lost_among(self, worker: str, held: Mapping[str, int]) -> set[str]:
        with self._lock:
            return {key for key, fence in held.items() if not self._is_held(key, fence, worker)}

    def _is_held(self, key: str, fence: int, worker: str) -> bool:
        row = self._attempts.get(key)
        if row is None or self._runs[row.key.run].stopped_at is not None:
            return False
        if self.aborted_among([(row.key.run, each) for each in self._scopes[row.key.run, row.key.address].lanes]):
            return False
        return (row.status, row.fence, row.worker) == ("running", fence, worker)

    def release_unowned(self, worker: str, kept: Collection[str], older_s: float) -> set[str]:
        with self._lock:
            before = self._clock() - older_s
            mine = [row for row in self._attempts.values() if (row.status, row.worker) == ("running", worker)]
            gone = [row for row in mine if str(row.key) not in kept and (row.started_at or 0.0) < before]
            for row in gone:
                row.worker = None
            return {str(row.key) for row in gone}

    def hand_back(self, worker: str, keys: Collection[str], *, is_broken: bool = False) -> set[str]:
        with self._lock:
            rows = [self._attempts[key] for key in sorted(keys) if key in self._attempts]
            mine = [row for row in rows if row.status == "queued" or (row.status, row.worker) == ("running", worker)]
            for row in mine:
                row.suspicions += is_broken and row.status == "running"
                times = self._count_handed_back(row, worker) if row.status == "running" else 0
                if times <= HANDED_BACK_MOST:
                    row.move("ready")
                row.worker, row.available_at, row.sends = None, self._clock(), 0
            return {str(row.key) for row in mine if row.status == "ready"}

    def _count_handed_back(self, row: StoredAttempt, worker: str) -> int:
        name, key = "attempt.handed_back", str(row.key)
        times = 1 + sum((each.attempt, each.name) == (key, name) for each in self._events)
        level = "info" if times < HANDED_BACK_OFTEN else "warning"
        self._add_event(row.key.run, key, name, level, {"worker": worker, "times": times})
        return times

    def deregister_worker(self, worker: str) -> None:
        with self._lock:
            self._leases.pop(worker, None)
            self._started.pop(worker, None)
            self._loaded.pop(worker, None)

    def neighbours(self, host: str) -> list[tuple[str, int]]:
        with self._lock:
            at_work = {row.worker for row in self._attempts.values() if row.status == "running"}
            members = [self._members[worker] for worker in self._leases if worker in at_work]
            return [(each.id, each.pid) for each in members if each.host == host]

    def bury(self, worker: str, max_lost: int) -> set[str]:
        with self._lock:
            if self._leases.pop(worker, None) is None:
                return set()
            mine = [row for row in self._attempts.values() if (row.status, row.worker) == ("running", worker)]
            freed = [row for row in mine if not row.is_poison(max_lost) and self._may_run(self._runs[row.key.run])]
            for row in freed:
                row.lose()
                row.move("ready")
                self._add_republish_event(row, "lost")
                row.worker, row.available_at, row.sends = None, self._clock(), 0
            return {str(row.key) for row in freed}

    # backlog

    def mark_sent(self, ages: Mapping[str, float]) -> None:
        with self._lock:
            for key, age in ages.items():
                row = self._attempts.get(key)
                if row is not None and row.status == "ready" and not row.fence:  # one that was claimed had its message
                    self._mark(row, self._clock() - age)

    def begin_sweep(self, worker: str, every_s: float) -> bool:  # noqa: ARG002 - only Postgres records who
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
        self,
        broker: BrokerSnapshot,
        *,
        judge: str | None,
        max_lost: int,
        limit: int,
        publish: Publish = publish_nothing,
        damaged: Damaged = ignore,  # noqa: ARG002 - what is held as values is always readable
    ) -> list[Due]:
        with self._lock:
            may_judge = self._is_leased(judge)
            rows = sorted(self._attempts.values(), key=lambda each: each.available_at)
            whys = [(row, self._why_due(row, broker, may_judge=may_judge, max_lost=max_lost)) for row in rows]
            found = [(row, Due(why, self._envelope(row))) for row, why in whys if why is not None][:limit]
            publish([due for _, due in found])
            for row, due in found:
                if row.status == "running":
                    row.lose()
                    row.sends = 0
                self._mark(row, self._clock())
                self._add_republish_event(row, due.why)
            return [due for _, due in found]

    def _add_republish_event(self, row: StoredAttempt, why: str) -> None:
        run, key = row.key.run, str(row.key)
        if why == "lost":
            losses = {"losses": row.losses, "losses_alone": row.losses_alone}
            self._add_event(run, key, "attempt.lost", "warning", {"worker": row.worker, **losses})
        elif why != "ready":
            self._add_event(run, key, "attempt.sent_again", "info", {"why": why, "sends": row.sends})

    def _why_due(self, row: StoredAttempt, broker: BrokerSnapshot, *, may_judge: bool, max_lost: int) -> str | None:
        if not self._may_run(self._runs[row.key.run]):
            return None
        now = self._clock()
        if row.status == "ready":
            return "ready" if row.available_at <= now else None
        if row.status == "running":
            return "lost" if may_judge and self._is_lost(row) and not row.is_poison(max_lost) else None
        if row.status != "queued":
            return None
        if row.sent_at < broker.epoch_start:
            return "epoch"
        if row.queue not in broker.heads or row.sent_at >= now - _patience_s(row):
            return None
        head = broker.heads[row.queue]
        return "gone" if head is None or head > row.sent_at else None

    def expire_questions(self, limit: int) -> int:
        with self._lock:
            paused = [row for row in self._attempts.values() if row.status == "paused"]
            over = [
                row for row in paused if self._may_merge(self._runs[row.key.run]) and row.available_at <= self._clock()
            ]
            for row in over[:limit]:
                row.move("ready")
                self._add_event(row.key.run, str(row.key), "run.unanswered", "warning", {"step": row.key.step})
            return len(over[:limit])

    def poisoned(
        self,
        *,
        judge: str,
        max_lost: int,
        limit: int,
        damaged: Damaged = ignore,  # noqa: ARG002 - as above
    ) -> list[tuple[Envelope, int]]:
        with self._lock:
            poison = [row for row in self._attempts.values() if self._is_lost(row) and row.is_poison(max_lost)]
            rows = poison[:limit] if self._is_leased(judge) else []
            for row in rows:
                row.fence += 1
            return [(self._envelope(row), row.fence) for row in rows]

    def runs_to_stop(self, limit: int) -> list[tuple[str, Literal["cancelled", "expired", "failed"]]]:
        with self._lock:
            turned = [
                run for run in self._runs.values() if run.is_live and (run.stopped_at is not None or self._is_over(run))
            ]
            return [(run.ticket.run, self._turn(run)) for run in turned[:limit]]

    def _turn(self, run: StoredRun) -> Literal["cancelled", "expired", "failed"]:
        if run.fault is not None:
            return "failed"
        return "cancelled" if run.asked or not self._is_over(run) else "expired"

    def rotate_event_partitions(self, keep_days: int | None) -> None:
        if keep_days is None:
            return
        with self._lock:
            first = datetime.fromtimestamp(self._clock(), UTC).date() - timedelta(days=keep_days)
            self._events[:] = [event for event in self._events if event.at.date() >= first]

    def parked(self, limit: int, but: Collection[str] = ()) -> list[tuple[str, str, str]]:
        with self._lock:
            tickets = [run.ticket for run in self._parked() if run.awaited is None and run.ticket.run not in but][
                :limit
            ]
            return [(ticket.run, ticket.reference, ticket.fingerprint) for ticket in tickets]

    def parked_for_code(self, limit: int) -> list[tuple[str, str, str, AwaitedCode]]:
        with self._lock:
            found = [(run.ticket, run.awaited) for run in self._parked() if run.awaited is not None][:limit]
            return [(ticket.run, ticket.reference, ticket.fingerprint, awaited) for ticket, awaited in found]

    def _parked(self) -> list[StoredRun]:
        parked = (run for run in self._runs.values() if run.status == "parked")
        return fairly(parked, lambda run: (run.ticket.reference, run.ticket.fingerprint))

    def unpark(self, run: str, worker: str) -> bool:
        with self._lock:
            row = self._runs.get(run)
            if row is None or row.status != "parked":
                return False
            row.move("running")
            row.reason = row.awaited = None
            row.unparked_by = worker
            self._add_event(run, None, "run.unparked", "info", {})
            return True


def _patience_s(row: StoredAttempt) -> float:
    """Return the seconds after which a message is taken for lost."""
    return float(GONE_AFTER_S * 2 ** (min(row.sends, MAX_DOUBLINGS + 1) - 1))
