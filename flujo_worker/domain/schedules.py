"""Decide which slots of a due schedule fire. Pure (ADR 60)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final, NamedTuple

from flujo_client.contract.schedules import LATE_S, MOST_CAUGHT_UP, ScheduleRecord, due_at
from flujo_client.frozen import frozen

AGAIN_S: Final = 5.0
"""Seconds after which a slot that failed is tried again."""
_LATE: Final = timedelta(seconds=LATE_S)


@frozen
class DueSchedule:
    """A schedule whose next slot is due: its row, its plan's fingerprint when it was added, and the packed input and options of its runs.

    `now` is the database's clock; `failing_since` is when the next slot failed first, if it does.
    """

    record: ScheduleRecord
    fingerprint: str
    body: bytes
    now: datetime
    failing_since: datetime | None = None

    @property
    def is_given_up(self) -> bool:
        """Return whether the next slot has failed for a minute, and is given up if it fails again."""
        return self.failing_since is not None and self.now - self.failing_since >= _LATE


class DueSlots(NamedTuple):
    """The slots to fire, in order, and the one that follows, if there is one."""

    slots: Sequence[datetime]
    following: datetime | None


@frozen
class Fired:
    """The result of firing due slots: the next slot, the latest that fired or was given up with its run, and the error of one that did not fire.

    `again_s` is in how many seconds the next slot is tried again, if it failed.
    """

    next_slot: datetime | None
    last_slot: datetime | None = None
    run: str | None = None
    error: str | None = None
    again_s: float | None = None


def due_slots(due: DueSchedule) -> DueSlots:
    """Return the slots of a schedule that fire now, by its catch-up policy.

    Slots that have been due for less than a minute always fire. Of the earlier ones, `all` fires the newest 100, and `last` the newest if no later
    slot fires.
    """
    record, now = due.record, due.now
    assert record.slot_at is not None
    found = record.timing.newest(record.slot_at - timedelta(seconds=1), now, MOST_CAUGHT_UP + 1)
    ripe = list(takewhile(lambda slot: due_at(record.name, slot, record.timing) <= now, found))
    if not ripe:
        return DueSlots((), record.slot_at)
    retried = None if due.failing_since is None else record.slot_at  # it was in time when it first failed
    in_time = [slot for slot in ripe if slot == retried or now - due_at(record.name, slot, record.timing) < _LATE]
    made_up = {"none": [], "last": ripe[-1:], "all": ripe[-MOST_CAUGHT_UP:]}[record.catch_up]
    fires = made_up if record.catch_up == "all" else in_time or made_up
    return DueSlots(fires, record.timing.after(ripe[-1]))
