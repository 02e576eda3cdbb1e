"""Schedules in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from flujo_client.contract.schedules import ScheduleRecord, due_at
from flujo_client.serial import Packed
from flujo_worker.domain.schedules import DueSchedule, Fired
from flujo_worker.store.memory.rows import when
from flujo_worker.store.memory.tables import InMemory


class SchedulesInMemory(InMemory):
    """The port `ScheduleStore`."""

    def add(self, record: ScheduleRecord, body: Packed) -> None:
        """Store a schedule, or replace that of its name."""
        known = self._t.schedules.get(record.name)
        if known is not None:
            kept = known.record if known.record.timing == record.timing else record
            record = replace(record, is_paused=known.record.is_paused, slot_at=kept.slot_at, due_at=kept.due_at)
        self._t.schedules[record.name] = DueSchedule(record, "", bytes(body), when(self._t.clock()))

    def due(self, limit: int) -> list[DueSchedule]:
        now = when(self._t.clock())
        rows = [each for each in self._t.schedules.values() if not each.record.is_paused]
        found = [(each.record.due_at, each.record.name, each) for each in rows if each.record.due_at is not None]
        return [replace(each, now=now) for at, _, each in sorted(found, key=lambda row: row[:2])[:limit] if at <= now]

    def advance(self, due: DueSchedule, fired: Fired) -> bool:
        known = self._t.schedules.get(due.record.name)
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
        self._t.schedules[record.name] = replace(known, record=record, failing_since=failing_since)
        return True
