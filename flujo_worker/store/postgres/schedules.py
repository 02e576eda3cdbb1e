"""Schedules on Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_client.serial import dumps, storable_text
from flujo_worker.store.postgres.pool import InPostgres

if TYPE_CHECKING:
    from flujo_worker.domain.schedules import DueSchedule, Fired


class SchedulesInPostgres(InPostgres):
    """The port `ScheduleStore`."""

    def due(self, limit: int) -> list[DueSchedule]:
        if not (rows := self._pool.rows("due_schedules", {"limit": limit})):
            return []
        from flujo_client.contract.schedules import ScheduleRecord
        from flujo_worker.domain.schedules import DueSchedule

        return [
            DueSchedule(
                ScheduleRecord.of(row), row["fingerprint"], bytes(row["body"]), row["now"], row["failing_since"]
            )
            for row in rows
        ]

    def advance(self, due: DueSchedule, fired: Fired) -> bool:
        from flujo_client.contract.schedules import due_at

        record, slot = due.record, fired.next_slot
        parameters = {
            "schedule": record.name,
            "slot_at": record.slot_at,
            "timing": dumps(record.timing.to_tree()).decode(),
            "next_slot": slot,
            "next_due": None if slot is None else due_at(record.name, slot, record.timing),
            "again_s": fired.again_s,
            "last_slot": fired.last_slot,
            "last_run": fired.run,
            "error": None if fired.error is None else storable_text(fired.error),
        }
        return bool(self._pool.rows("advance_schedule", parameters))
