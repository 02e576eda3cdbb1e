"""What tests do to the stores in memory and read from them, and the product does not: an operator's acts, and reads for replays and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from fnmatch import fnmatchcase
from math import inf
from typing import Any

from flujo_client.contract import records
from flujo_client.contract.limits import WAKE_S, Guard, GuardRow
from flujo_client.contract.schedules import ScheduleRecord, due_at
from flujo_client.serial import Packed
from flujo_worker.domain.budget import Budget
from flujo_worker.domain.schedules import DueSchedule, Fired
from flujo_worker.store.memory.rows import recorded, when
from flujo_worker.store.memory.stores import MemoryStores
from flujo_worker.store.memory.tables import InMemory, Tables
from tests.support.memory_exports import ExportsInMemory
from tests.support.memory_retention import RetentionInMemory


class AllInMemory(MemoryStores):
    """The stores in memory, and those that only a worker's upkeep needs, which runs without services do not have."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        add_upkeep(self)


def add_upkeep(stores: Any) -> Any:
    """Give the stores of an engine what only a worker's upkeep needs, and return them."""
    stores.exports = ExportsInMemory(stores.tables)
    stores.retention = RetentionInMemory(stores.tables, stores.exports)
    stores.schedules = SchedulesInMemory(stores.tables)
    return stores


def asked(stores: MemoryStores) -> AskedInMemory:
    """Return what tests ask of these stores."""
    return AskedInMemory(stores.tables)


class AskedInMemory(InMemory):
    """Operations of clients and operators, as `flujo_client.gateway` has them for Postgres."""

    def request_cancel(self, run_id: str, reason: str | None = None) -> bool:
        """Request a cancel, with a reason; from now on nothing of the run is claimed or merged. False: it had ended."""
        run = self._t.run(run_id)
        if not run.is_live:
            return False
        run.asked, run.note, run.stopped_at = True, run.note or reason, run.stopped_at or self._t.clock()
        return True

    def edit_guard(
        self,
        guard: Guard,
        model: str,
        edits: Mapping[str, Any] | None = None,
        *,
        resets: bool = False,
        clears: bool = False,
        actor: str | None = None,
    ) -> int:
        """Change what operators have set, as `flujo_client.gateway.operator_requests.edit_guard` does; return how many attempts were woken."""
        row = self._t.guards.get((guard, model), GuardRow(guard, model))
        kept = None if resets else row.edits
        merged = kept if edits is None else {**(kept or {}), **edits}
        cleared_at = self._t.clock() if clears else row.cleared_at
        self._t.guards[guard, model] = replace(row, edits=merged, cleared_at=cleared_at)
        edit = {"guard": guard, "model": model, "edits": edits, "resets": resets, "clears": clears, "actor": actor}
        self._t.add_event(None, None, "guard.edited", "info", edit)
        at = self._t.clock() + WAKE_S
        later = [row for row in self._t.attempts.values() if row.status == "ready" and row.available_at > at]
        woken = [row for row in later if _fits(row.waits_for, guard, model)]
        for each in woken:
            each.available_at = at
        return len(woken)

    def read_attempt_values(self, key: str) -> records.AttemptValues:
        row = self._t.attempts[key]
        return records.AttemptValues(row.input, row.output, row.model_answer)

    def read_recording(self, run_id: str) -> records.Recording:
        """Read what a run began with, for its replay."""
        run = self._t.run(run_id)
        has_context = self._t.scopes[run_id, run.ticket.root].context is not None
        return recorded(records.Recording, run, run.ticket, id=run_id, has_context=has_context)

    def read_notices(self, run_id: str) -> list[records.NoticeRecord]:
        """Read the outcomes that a run's coordinators received, in the order of their commits."""
        concluded = [row for row in self._t.attempts_of(run_id) if "taken_over_from" not in row.metadata]
        rows = sorted(concluded, key=lambda row: inf if row.ended_at is None else row.ended_at)
        made = {str(row.key): number for number, row in enumerate(concluded, 1)}
        return [recorded(records.NoticeRecord, row, row.key, made=made[str(row.key)], key=str(row.key)) for row in rows]

    def read_system_events(self) -> list[records.EventRecord]:
        return [event for event in self._t.events if event.run_id is None]

    def read_corrections(self, run_id: str) -> list[records.CorrectionRecord]:
        return [each for each in self._t.corrections if each.run_id == run_id]

    def read_budgets(self) -> dict[str, Budget]:
        return dict(self._t.budgets)


def _fits(waits_for: str | None, guard: Guard, model: str) -> bool:
    its_guard, _, its_model = (waits_for or "").partition(" ")
    return its_guard == guard and (its_model == model or fnmatchcase(its_model, model))


class SchedulesInMemory(InMemory):
    """The port `ScheduleStore`."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self.rows: dict[str, DueSchedule] = {}

    def add(self, record: ScheduleRecord, body: Packed) -> None:
        """Store a schedule, or replace that of its name."""
        known = self.rows.get(record.name)
        if known is not None:
            kept = known.record if known.record.timing == record.timing else record
            record = replace(record, is_paused=known.record.is_paused, slot_at=kept.slot_at, due_at=kept.due_at)
        self.rows[record.name] = DueSchedule(record, "", bytes(body), when(self._t.clock()))

    def due(self, limit: int) -> list[DueSchedule]:
        now = when(self._t.clock())
        rows = [each for each in self.rows.values() if not each.record.is_paused]
        found = [(each.record.due_at, each.record.name, each) for each in rows if each.record.due_at is not None]
        return [replace(each, now=now) for at, _, each in sorted(found, key=lambda row: row[:2])[:limit] if at <= now]

    def advance(self, due: DueSchedule, fired: Fired) -> bool:
        known = self.rows.get(due.record.name)
        if known is None or (known.record.slot_at, known.record.timing) != (due.record.slot_at, due.record.timing):
            return False
        record, now, slot = known.record, when(self._t.clock()), fired.next_slot
        next_due = None if slot is None else due_at(record.name, slot, record.timing)
        if fired.again_s is not None:
            next_due = now + timedelta(seconds=fired.again_s)
        if fired.last_slot is not None:
            record = replace(record, last_slot=fired.last_slot, last_run=fired.run, last_error=fired.error)
        record = replace(record, slot_at=slot, due_at=next_due, last_error=fired.error or record.last_error)
        failing_since = None if fired.again_s is None else known.failing_since or now
        self.rows[record.name] = replace(known, record=record, failing_since=failing_since)
        return True
