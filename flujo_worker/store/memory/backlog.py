"""The queries of the sweeper in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from flujo_client.contract.envelope import Envelope
from flujo_worker.ports import BrokerSnapshot, Damaged, Due, PoisonedAttempt, Publish, ignore
from flujo_worker.store.memory.budgets import BudgetsInMemory
from flujo_worker.store.memory.rows import StoredAttempt, StoredRun
from flujo_worker.store.memory.tables import InMemory, Tables


class BacklogInMemory(InMemory):
    def __init__(self, tables: Tables, budgets: BudgetsInMemory) -> None:
        super().__init__(tables)
        self._budgets = budgets

    def mark_sent(self, ages: Mapping[str, float]) -> None:
        for key, age in ages.items():
            row = self._t.attempts.get(key)
            if row is None or row.status != "ready" or row.fence or self._t.is_held_back(row):
                continue  # one that was claimed had its message
            self._t.mark(row, self._t.clock() - age)

    def begin_sweep(self, worker: str, every_s: float) -> bool:  # noqa: ARG002 - only Postgres records the worker
        if self._t.swept_at >= self._t.clock() - every_s:
            return False
        self._t.swept_at = self._t.clock()
        return True

    def epoch_start(self, epoch: str) -> float:
        return self._t.epochs.setdefault(epoch, self._t.clock() if self._t.epochs else 0.0)

    def queues(self) -> list[str]:
        return sorted({row.queue for row in self._t.attempts.values() if row.status == "queued"})

    def due(
        self,
        broker: BrokerSnapshot,
        *,
        judge: str | None,
        max_lost: int,
        limit: int,
        publish: Publish = ignore,
        damaged: Damaged = ignore,  # noqa: ARG002 - what is held as values is always readable
    ) -> list[Due]:
        may_judge = self._t.is_leased(judge)
        rows = sorted(self._t.attempts.values(), key=lambda each: each.available_at)
        whys = [(row, self._why_due(row, broker, may_judge=may_judge, max_lost=max_lost)) for row in rows]
        found = [(row, Due(why, self._t.envelope(row), row.fence)) for row, why in whys if why is not None][:limit]
        publish([due for _, due in found])
        for row, due in found:
            if row.status == "running":
                row.lose(self._t.clock())
                row.wait_no_more()
                row.sends = 0
            self._t.mark(row, self._t.clock())
            self._t.add_republish_event(row, due.why)
        return [due for _, due in found]

    def envelopes(self, keys: Collection[str]) -> list[Envelope]:
        return [self._t.envelope(self._t.attempts[key]) for key in keys if key in self._t.attempts]

    def hand_over_events(self, limit: int) -> int:
        given = 0
        for event in [each for each in self._t.sent_events.values() if not each.is_over]:
            run = self._t.runs.get(event.run)
            if run is None or not run.is_live:
                event.is_over = True
            elif given < limit and self._t.may_merge(run) and self._t.give_event(event):
                given += 1
        return given

    def expire_questions(self, limit: int) -> int:
        now, rows = self._t.clock(), self._t.attempts.values()
        expired = [row for row in rows if row.status == "paused" and row.available_at <= now]
        over = [row for row in expired if self._t.may_merge(self._t.runs[row.key.run])]
        for row in over[:limit]:
            row.move("ready")
            self._t.add_event(row.key.run, str(row.key), "run.unanswered", "warning", {"step": row.key.step})
        return len(over[:limit])

    def poisoned(
        self,
        *,
        judge: str,
        max_lost: int,
        limit: int,
        damaged: Damaged = ignore,  # noqa: ARG002 - as above
    ) -> list[PoisonedAttempt]:
        poison = [row for row in self._t.attempts.values() if self._t.is_lost(row) and row.is_poison(max_lost)]
        rows = poison[:limit] if self._t.is_leased(judge) else []
        for row in rows:
            row.fence += 1
            row.note_loss(self._t.clock())
        return [PoisonedAttempt(self._t.envelope(row), row.fence, (row.loss or {}).get("how")) for row in rows]

    def runs_to_stop(self, limit: int) -> list[tuple[str, Literal["cancelled", "expired", "failed"]]]:
        live = [run for run in self._t.runs.values() if run.is_live]
        turned = [run for run in live if run.stopped_at is not None or self._t.is_over(run)]
        return [(run.ticket.run, self._turn(run)) for run in turned[:limit]]

    def stop(self, run: str, status: Literal["cancelled", "expired", "failed"], reason: str) -> bool:
        row, now = self._t.runs.get(run), self._t.clock()
        if row is None or not row.is_live:
            return False
        for attempt in self._t.attempts_of(run):
            if attempt.is_live:
                attempt.cancel(status, now)
        for scope in self._t.scopes_of(run):
            if scope.is_open:
                scope.wind_down(status, now)
        row.move(status)
        row.reason, row.ended_at, row.stopped_at = row.note or reason, now, row.stopped_at or now
        self._budgets.release(run)
        self._t.owe(run, "post_run")
        self._t.add_event(run, None, f"run.{status}", "warning", {"reason": row.reason})
        return True

    def _why_due(self, row: StoredAttempt, broker: BrokerSnapshot, *, may_judge: bool, max_lost: int) -> str | None:
        if not self._t.may_run(self._t.runs[row.key.run]):
            return None
        now = self._t.clock()
        if row.status == "ready":
            return "ready" if row.available_at <= now else None
        if row.status == "running":
            return "lost" if may_judge and self._t.is_lost(row) and not row.is_poison(max_lost) else None
        if row.status != "queued":
            return None
        if row.sent_at < broker.epoch_start:
            return "epoch"
        if row.queue not in broker.heads or row.sent_at >= now - row.patience_s:
            return None
        head = broker.heads[row.queue]
        return "gone" if head is None or head > row.sent_at else None

    def _turn(self, run: StoredRun) -> Literal["cancelled", "expired", "failed"]:
        if run.fault is not None:
            return "failed"
        return "cancelled" if run.asked or not self._t.is_over(run) else "expired"
