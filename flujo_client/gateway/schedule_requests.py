"""Queries for schedules. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from flujo_client.contract.records import NewRun
from flujo_client.contract.schedules import ScheduleRecord, due_at
from flujo_client.gateway.requests import Request, bind_pipeline
from flujo_client.pipeline.schedule import Schedule
from flujo_client.serial import Packed, dumps


def now() -> Request[datetime]:
    """Read the database's clock, which decides what is due."""
    return Request("now", {}, lambda rows: rows[0]["now"])


def add(schedule: Schedule, new: NewRun, order: Packed, slot: datetime) -> Request[ScheduleRecord]:
    """Store a schedule with its first slot, or replace the one of its name, which keeps its next slot if the timing is the same."""
    parameters = {
        **bind_pipeline(new),
        **_timed(schedule, slot),
        "order": bytes(order),
        "tenant": schedule.tenant,
        "overlap": schedule.overlap,
        "catch_up": schedule.catch_up,
    }
    return Request("add_schedule", parameters, lambda rows: ScheduleRecord.of(rows[0]))


def schedules(name: str | None = None) -> Request[list[ScheduleRecord]]:
    """Read one schedule, or all of them by name."""
    return Request("schedules", {"schedule": name}, lambda rows: [ScheduleRecord.of(row) for row in rows])


def order(name: str) -> Request[tuple[Packed, str] | None]:
    """Read the packed input and options of a schedule's runs, and its plan's fingerprint; None if there is no such schedule."""
    return Request(
        "schedule_order",
        {"schedule": name},
        lambda rows: (Packed.from_bytes(rows[0]["body"]), rows[0]["fingerprint"]) if rows else None,
    )


def pause(name: str) -> Request[bool]:
    """Pause a schedule; return whether it exists."""
    return Request("pause_schedule", {"schedule": name}, bool)


def resume(found: ScheduleRecord, slot: datetime | None) -> Request[bool]:
    """Resume a schedule from this slot; return whether it still has that timing."""
    return Request("resume_schedule", _timed(found, slot), bool)


def remove(name: str) -> Request[bool]:
    """Delete a schedule; return whether it existed. Its runs stay."""
    return Request("remove_schedule", {"schedule": name}, bool)


def _timed(schedule: Schedule | ScheduleRecord, slot: datetime | None) -> dict[str, Any]:
    name, timing = schedule.name, schedule.timing
    due = None if slot is None else due_at(name, slot, timing)
    return {"schedule": name, "timing": dumps(timing.to_tree()).decode(), "slot_at": slot, "due_at": due}
