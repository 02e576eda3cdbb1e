"""Schedules: when they fire, and their rows (ADR 60). Pure.

A *slot* is a moment at which a schedule fires. Slots depend on its timing alone, so every process computes the same ones: intervals count from
1970-01-01 UTC, and cron lines are read in their time zone. Jitter delays a slot by an amount that depends on the schedule's name and the slot.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import TYPE_CHECKING, Any, Final, Literal, Self, get_args
from zoneinfo import ZoneInfo

from flujo_client.contract.admission import Singleton
from flujo_client.errors import ConfigurationError
from flujo_client.serial import loads

if TYPE_CHECKING:
    from cronsim import CronSim

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
"""A schedule's name: it begins the ids of its runs."""
Overlap = Literal["skip", "queue", "cancel_previous", "allow"]
CatchUp = Literal["none", "last", "all"]
OVERLAPS: Final = get_args(Overlap)
CATCH_UPS: Final = get_args(CatchUp)

LATE_S: Final = 60.0
"""Seconds after which a slot that has not fired is late: then the catch-up policy decides, and errors are not retried."""
MOST_CAUGHT_UP: Final = 100
"""The maximum number of slots that fire after a break, the newest."""
LONGEST_S: Final = 366 * 86_400
"""The longest interval, in seconds."""
LONGEST_LINE: Final = 200
"""The most characters of a cron line."""
_SINGLETON: Final[Mapping[Overlap, Singleton]] = {"skip": "return", "queue": "queue", "cancel_previous": "replace"}
_COMPARED: Final = 100
"""The number of slots of a cron line whose distances bound its jitter."""
_STEP_S: Final = 6 * 3600
_SECOND: Final = timedelta(seconds=1)
_A_TIME: Final = "2027-01-31T00:00Z"
_START: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - the local time of any zone


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule fires; `Schedule` describes the fields."""

    cron: str | None = None
    every_s: int | None = None
    zone: str = "UTC"
    jitter_s: float = 0.0
    until: datetime | None = None

    def check(self) -> None:
        """Raise ConfigurationError if a value is invalid, or the cron line never fires."""
        if (self.cron is None) == (self.every_s is None):
            raise ConfigurationError("give either `cron` or `every_s`")
        try:
            ZoneInfo(self.zone)
        except (KeyError, ValueError, OSError, TypeError):
            way_out = "name one of the IANA database, such as Europe/Berlin"
            raise ConfigurationError(f"zone '{self.zone}' does not exist", suggestion=way_out) from None
        if self.until is not None and self.until.tzinfo is None:
            raise ConfigurationError(f"until '{self.until}' has no UTC offset", suggestion=f"write it as {_A_TIME}")
        if self.cron is not None:
            slots = list(islice(_line(self.cron, _START), _COMPARED))
            if not slots:
                raise ConfigurationError(f"cron line '{self.cron}' never fires: no such day comes within 50 years")
            shortest_s = min((later - slot).total_seconds() for slot, later in pairwise(slots))
        elif type(self.every_s) is int and 1 <= self.every_s <= LONGEST_S:
            shortest_s = self.every_s
        else:
            message = f"every_s must be a whole number of seconds from 1 to {LONGEST_S}, got {self.every_s}"
            raise ConfigurationError(message)
        if not 0 <= self.jitter_s < shortest_s:
            what = f"jitter_s must be from 0 to less than the {shortest_s:g} s between two slots, got {self.jitter_s:g}"
            raise ConfigurationError(what)

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Self:
        """Read plain data, where `until` may be a text; raises ConfigurationError for one that is not a time."""
        until = tree["until"]
        try:
            return cls(**{**tree, "until": datetime.fromisoformat(until) if isinstance(until, str) else until})
        except ValueError:
            raise ConfigurationError(f"until '{until}' must be a time such as {_A_TIME}") from None

    def to_tree(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "until": None if self.until is None else self.until.astimezone(UTC).isoformat()}

    def after(self, moment: datetime) -> datetime | None:
        """Return the first slot after a moment, in UTC; None if there is none."""
        slot: datetime | None
        if self.cron is None:
            period = self.every_s or 1
            slot = datetime.fromtimestamp((moment.timestamp() // period + 1) * period, UTC)
        else:
            at_times = not any(field.startswith("*") for field in self.cron.split()[:2])
            slot = (_once_each if at_times else _whenever_shown)(self.cron, ZoneInfo(self.zone), moment.astimezone(UTC))
        return None if slot is None or (self.until is not None and slot > self.until) else slot

    def slots(self, since: datetime) -> Iterator[datetime]:
        """Yield the slots after a moment, in order."""
        slot = self.after(since)
        while slot is not None:
            yield slot
            slot = self.after(slot)

    def newest(self, since: datetime, now: datetime, most: int) -> list[datetime]:
        """Return the newest slots after `since` and until `now`, at most `most`, in a time that does not grow with the span."""
        span = timedelta(minutes=1)
        while True:
            start = max(since, now - span)
            found = list(takewhile(lambda slot: slot <= now, self.slots(start)))
            if start == since or len(found) >= most:
                return found[-most:]
            span *= 4


def due_at(name: str, slot: datetime, timing: Timing) -> datetime:
    """Return when a slot fires: delayed by its jitter."""
    digest = hashlib.sha256(f"{name} {slot.timestamp():.0f}".encode()).digest()
    return slot + timedelta(seconds=timing.jitter_s * int.from_bytes(digest[:4]) / 2**32)


def run_id_of(name: str, slot: datetime) -> str:
    """Return the id of a slot's run: a run with that id is enqueued once, whatever is repeated."""
    return f"{name}.{slot.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def run_options(name: str, tenant: str, overlap: Overlap, given: Mapping[str, Any], **metadata: str) -> dict[str, Any]:
    """Return the options of enqueue for a run of a schedule: its runs share a singleton, unless they may overlap."""
    singleton = {} if overlap == "allow" else {"singleton_key": f"schedule {name}", "singleton": _SINGLETON[overlap]}
    metadata = {**(given.get("metadata") or {}), "schedule": name, **metadata}
    return {**given, "tenant": tenant, "metadata": metadata, **singleton}


def _line(line: str, after: datetime) -> Iterator[datetime]:
    """Yield the local times of a cron line; raises ConfigurationError."""
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        message = "cron lines need the library cronsim"
        raise ConfigurationError(message, suggestion="pip install 'flujo-worker[schedules]'", cause=error) from error
    fields = line.split()
    if len(fields) != 5 or len(line) > LONGEST_LINE:  # noqa: PLR2004 - minute, hour, day, month, day of the week
        message = f"cron line '{line[:LONGEST_LINE]}' must have five fields: minute, hour, day of the month, month and day of the week; got {len(fields)}"
        raise ConfigurationError(message)
    try:
        found: CronSim = CronSim(line, after)
    except CronSimError as error:
        fault = f"is malformed: {error}"
        if "day-of-month" in str(error):  # also where the month is too short
            with suppress(CronSimError):
                CronSim(" ".join([*fields[:3], "*", fields[4]]), after)
                fault = "never fires: none of its months has such a day"
        raise ConfigurationError(f"cron line '{line}' {fault}", cause=error) from error
    return found


def _once_each(line: str, zone: ZoneInfo, moment: datetime) -> datetime | None:
    """Find the next slot of a line with certain times of day, such as `30 2 * * *`: each fires once.

    A skipped time fires when the clock has changed, and one in a doubled hour the first time.
    """
    for local in _line(line, moment.astimezone(zone).replace(tzinfo=None)):
        slot = local.replace(tzinfo=zone).astimezone(UTC)
        if slot.astimezone(zone).replace(tzinfo=None) != local:
            slot = _change(zone, slot - timedelta(days=1), slot) or slot
        if slot > moment:
            return slot
    return None


def _whenever_shown(line: str, zone: ZoneInfo, moment: datetime) -> datetime | None:
    """Find the next slot of a line that repeats within hours or days, such as `*/15 * * * *`: it fires whenever the clock shows that time."""
    first = moment.replace(microsecond=0) + _SECOND
    while True:
        offset = first.astimezone(zone).utcoffset() or timedelta()
        local = next(iter(_line(line, (first + offset - _SECOND).replace(tzinfo=None))), None)
        if local is None:
            return None
        slot = local.replace(tzinfo=UTC) - offset
        change = _change(zone, first, slot)
        if change is None:
            return slot
        first = change


def _change(zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """Find the first second between two moments at which the clocks of a zone have changed."""
    offset = after.astimezone(zone).utcoffset()

    def is_changed(at: float) -> bool:
        return datetime.fromtimestamp(at, zone).utcoffset() != offset

    low, end = int(after.timestamp()), int(until.timestamp())
    while low < end:
        high = min(low + _STEP_S, end)
        if is_changed(high):
            return datetime.fromtimestamp(bisect(range(high), 0, low, key=is_changed), UTC)
        low = high
    return None


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A schedule's row.

    Attributes:
        name: its name.
        reference: the pipeline's reference.
        timing: when it fires.
        tenant: the owner of its runs.
        overlap: what happens at a slot while the previous run is under way.
        catch_up: what happens to missed slots.
        is_paused: whether it does not fire until it is resumed.
        slot_at: the next slot, if there is one.
        due_at: when that slot fires.
        last_slot: the latest slot that fired, or was given up.
        last_run: its run; with `overlap="skip"` that may be the earlier run that was under way.
        last_error: why the latest slot did not fire.
        pipeline: the pipeline's name.
    """

    name: str
    reference: str
    timing: Timing
    tenant: str
    overlap: Overlap
    catch_up: CatchUp
    is_paused: bool
    slot_at: datetime | None
    due_at: datetime | None
    last_slot: datetime | None = None
    last_run: str | None = None
    last_error: str | None = None
    pipeline: str = ""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Read a row."""
        read = {each.name: row[each.name] for each in fields(cls)}
        return cls(**{**read, "timing": Timing.of(loads(row["timing"]))})

    def upcoming(self, count: int = 3) -> list[datetime]:
        """Return when it fires next, in its time zone; nothing while it is paused."""
        if self.is_paused or self.slot_at is None:
            return []
        slots = [self.slot_at, *islice(self.timing.slots(self.slot_at), count - 1)]
        return [due_at(self.name, slot, self.timing).astimezone(ZoneInfo(self.timing.zone)) for slot in slots]
