"""Queries for schedules. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from flujo_client.contract.schedules import ScheduleRecord, due_at
from flujo_client.gateway.requests import Request, bind_pipeline
from flujo_client.serial import Packed, dumps

if TYPE_CHECKING:
    from flujo_client.contract.records import NewRun
    from flujo_client.contract.schedules import Timing
    from flujo_client.pipeline.schedule import Schedule


def now() -> Request[datetime]:
    """Read the database's clock, which says what is due."""
    return Request("now", {}, lambda rows: rows[0]["now"])


def add(schedule: Schedule, new: NewRun, order: Packed, slot: datetime) -> Request[ScheduleRecord]:
    """Store a schedule with its first slot, or replace that of its name; one whose timing does not change keeps its next slot."""
    parameters = {
        **bind_pipeline(new),
        "schedule": schedule.name,
        "order": bytes(order),
        "timing": dumps(schedule.timing.to_tree()).decode(),
        "tenant": schedule.tenant,
        "overlap": schedule.overlap,
        "catch_up": schedule.catch_up,
        **_first(schedule.name, slot, schedule.timing),
    }
    return Request("add_schedule", parameters, lambda rows: ScheduleRecord.of(rows[0]))


def schedules(name: str | None = None) -> Request[list[ScheduleRecord]]:
    """Read one schedule, or all of them by name."""
    return Request("schedules", {"schedule": name}, lambda rows: [ScheduleRecord.of(row) for row in rows])


def order(name: str) -> Request[tuple[Packed, str] | None]:
    """Read what the runs of a schedule are enqueued with, and the fingerprint of its plan; None if there is no such schedule."""
    return Request(
        "schedule_order",
        {"schedule": name},
        lambda rows: (Packed.from_bytes(rows[0]["body"]), rows[0]["fingerprint"]) if rows else None,
    )


def pause(name: str) -> Request[bool]:
    """Let a schedule fire nothing; return whether it exists."""
    return Request("pause_schedule", {"schedule": name}, bool)


def resume(found: ScheduleRecord, slot: datetime | None) -> Request[bool]:
    """Let a schedule fire again, from this slot on; return whether it still has that timing."""
    first: dict[str, Any] = {"slot_at": None, "due_at": None}
    parameters = {
        "schedule": found.name,
        "timing": dumps(found.timing.to_tree()).decode(),
        **(first if slot is None else _first(found.name, slot, found.timing)),
    }
    return Request("resume_schedule", parameters, bool)


def remove(name: str) -> Request[bool]:
    """Delete a schedule; return whether it existed. Its runs stay."""
    return Request("remove_schedule", {"schedule": name}, bool)


def _first(name: str, slot: datetime, timing: Timing) -> dict[str, Any]:
    return {"slot_at": slot, "due_at": due_at(name, slot, timing)}
