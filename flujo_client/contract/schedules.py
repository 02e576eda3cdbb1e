"""Schedules: when they fire, and their rows (ADR 60). Pure.

A *slot* is a moment at which a schedule fires. Slots follow from its timing alone, so every process computes the same ones: intervals count from
1970-01-01 UTC, and a cron line is read in its time zone. Jitter delays a slot by an amount that follows from the schedule's name and the slot.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
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
"""Seconds after which a slot that was not fired is late: the catch-up policy decides about it, and errors are retried no longer."""
MOST_CAUGHT_UP: Final = 100
"""How many slots fire at once after a break; `all` leaves out those before the newest 100."""
LONGEST_S: Final = 366 * 86_400
"""The longest interval, in seconds."""
LONGEST_LINE: Final = 200
"""The most characters of a cron line."""
_SINGLETON: Final[Mapping[Overlap, Singleton]] = {"skip": "return", "queue": "queue", "cancel_previous": "replace"}
_COMPARED: Final = 100
"""How many slots of a cron line its jitter is compared with."""
_STEP: Final = timedelta(hours=6)
_START: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - the local time of any zone


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule fires: by a cron line or at an interval.

    Args:
        cron: five fields, as for cron: minute, hour, day of the month, month, day of the week.
        every_s: whole seconds between two slots; they are counted from 1970-01-01 00:00 UTC.
        zone: the time zone of the cron line, as `Europe/Berlin`.
        jitter_s: seconds up to which each slot is delayed, by an amount of its own.
        until: no slot follows this moment; with its UTC offset.
    """

    cron: str | None = None
    every_s: int | None = None
    zone: str = "UTC"
    jitter_s: float = 0.0
    until: datetime | None = None

    def check(self) -> None:
        """Raise ConfigurationError if a value is invalid, or the cron line never fires. Rows were checked before they were stored."""
        if (self.cron is None) == (self.every_s is None):
            raise ConfigurationError("give either `cron` or `every_s`")
        try:
            ZoneInfo(self.zone)
        except (KeyError, ValueError, OSError, TypeError):
            raise ConfigurationError(
                f"zone '{self.zone}' does not exist", suggestion="name one of the IANA database, such as Europe/Berlin"
            ) from None
        if self.until is not None and self.until.tzinfo is None:
            raise ConfigurationError(
                f"until '{self.until}' has no UTC offset", suggestion="write it as 2027-01-31T00:00Z"
            )
        shortest_s = self._check_line(self.cron) if self.cron is not None else self._check_interval()
        if not 0 <= self.jitter_s < shortest_s:
            raise ConfigurationError(
                f"jitter_s must be from 0 to less than the {shortest_s:g} s between two slots, got {self.jitter_s:g}"
            )

    def _check_interval(self) -> float:
        if type(self.every_s) is not int or not 1 <= self.every_s <= LONGEST_S:
            raise ConfigurationError(
                f"every_s must be a whole number of seconds from 1 to {LONGEST_S}, got {self.every_s}"
            )
        return self.every_s

    def _check_line(self, line: str) -> float:
        """Return the shortest time between slots of the cron line, in seconds; raises ConfigurationError."""
        slots = list(islice(_line(line, _START), _COMPARED))
        if not slots:
            raise ConfigurationError(f"cron line '{self.cron}' never fires: no such day comes within 50 years")
        return min((later - slot).total_seconds() for slot, later in pairwise(slots))

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Self:
        """Read what `to_tree` wrote."""
        until = tree["until"]
        return cls(**{**tree, "until": None if until is None else datetime.fromisoformat(until)})

    def to_tree(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "until": None if self.until is None else self.until.astimezone(UTC).isoformat()}

    def after(self, moment: datetime) -> datetime | None:
        """Return the first slot after a moment, in UTC; None if there is no further one."""
        if self.cron is None:
            period = int(self.every_s or 1)
            slot = datetime.fromtimestamp((int(moment.timestamp() // period) + 1) * period, UTC)
        else:
            found = self._of_line(self.cron, moment.astimezone(UTC))
            if found is None:
                return None
            slot = found
        return None if self.until is not None and slot > self.until else slot

    def _of_line(self, line: str, moment: datetime) -> datetime | None:
        zone = ZoneInfo(self.zone)
        minute, hour = line.split()[:2]
        by_hour = not minute.startswith("*") and not hour.startswith("*")
        return _at_certain_times(line, zone, moment) if by_hour else _again_and_again(line, zone, moment)

    def slots(self, since: datetime) -> Iterator[datetime]:
        """Yield the slots after a moment, in order."""
        slot = self.after(since)
        while slot is not None:
            yield slot
            slot = self.after(slot)

    def newest(self, since: datetime, now: datetime, most: int) -> list[datetime]:
        """Return the newest slots after `since` and until `now`, at most so many, however long that is."""
        span = timedelta(minutes=1)
        while True:
            start = max(since, now - span) if now - since > span else since
            found: list[datetime] = []
            for slot in self.slots(start):
                if slot > now:
                    break
                found.append(slot)
            if start == since or len(found) >= most:
                return found[-most:]
            span *= 4


def due_at(name: str, slot: datetime, timing: Timing) -> datetime:
    """Return when a slot of a schedule fires: the slot, delayed by its jitter."""
    digest = hashlib.sha256(f"{name} {slot.timestamp():.0f}".encode()).digest()
    return slot + timedelta(seconds=timing.jitter_s * int.from_bytes(digest[:4]) / 2**32)


def run_id_of(name: str, slot: datetime) -> str:
    """Return the id of the run of a slot: it exists once, whatever is repeated."""
    return f"{name}.{slot.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def overlap_options(name: str, overlap: Overlap) -> dict[str, Any]:
    """Return the options of enqueue for a run of a schedule: runs of one schedule share a singleton, unless they may overlap."""
    return {} if overlap == "allow" else {"singleton_key": f"schedule {name}", "singleton": _SINGLETON[overlap]}


def _line(line: str, after: datetime) -> Iterator[datetime]:
    """Yield the local times of a cron line; raises ConfigurationError."""
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise ConfigurationError(
            "cron lines need the library cronsim", suggestion="pip install 'flujo-worker[schedules]'", cause=error
        ) from error
    fields = line.split()
    if len(fields) != 5 or len(line) > LONGEST_LINE:  # noqa: PLR2004 - minute, hour, day, month, day of the week
        raise ConfigurationError(
            f"cron line '{line[:LONGEST_LINE]}' must have five fields: minute, hour, day of the month, month and day of the week; got {len(fields)}"
        )
    try:
        found: CronSim = CronSim(line, after)
    except CronSimError as error:
        if fields[3] != "*":
            for _ in _line(" ".join([*fields[:3], "*", fields[4]]), after):  # raises for any other fault
                raise ConfigurationError(
                    f"cron line '{line}' never fires: none of its months has such a day"
                ) from error
        raise ConfigurationError(f"cron line '{line}' is malformed: {error}", cause=error) from error
    return found


def _at_certain_times(line: str, zone: ZoneInfo, moment: datetime) -> datetime | None:
    """Find the next slot of a line with certain times of day, as `30 2 * * *`: each fires once.

    A time in the hour that a clock change skips fires when the clock has changed, and one in a doubled hour the first time.
    """
    for local in _line(line, moment.astimezone(zone).replace(tzinfo=None)):
        slot = _first(zone, local)
        if slot > moment:
            return slot
    return None


def _first(zone: ZoneInfo, local: datetime) -> datetime:
    slot = local.replace(tzinfo=zone).astimezone(UTC)
    if slot.astimezone(zone).replace(tzinfo=None) == local:
        return slot
    before = slot - timedelta(days=1)
    return _change(zone, before, slot) or slot


def _again_and_again(line: str, zone: ZoneInfo, moment: datetime) -> datetime | None:
    """Find the next slot of a line that repeats within hours or days, as `*/15 * * * *`: whenever the clock shows such a time."""
    local = moment.astimezone(zone).replace(tzinfo=None)
    while True:
        offset = moment.astimezone(zone).utcoffset() or timedelta()
        shown = next(iter(_line(line, local)), None)
        if shown is None:
            return None
        slot = shown.replace(tzinfo=UTC) - offset
        change = _change(zone, moment, slot)
        if change is None:
            return slot
        moment, local = change, change.astimezone(zone).replace(tzinfo=None) - timedelta(seconds=1)


def _change(zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """Find the first moment after one, and not after another, at which the clocks of a zone are changed."""
    offset = after.astimezone(zone).utcoffset()

    def is_changed(at: datetime) -> bool:
        return at.astimezone(zone).utcoffset() != offset

    low = after
    while low < until:
        high = min(low + _STEP, until)
        if is_changed(high):
            return _bisected(is_changed, low, high)
        low = high
    return None


def _bisected(is_changed: Callable[[datetime], bool], low: datetime, high: datetime) -> datetime:
    """Return the first whole second at which something has changed that had not at `low`, and has at `high`."""
    before, later = int(low.timestamp()), int(high.timestamp())
    while later - before > 1:
        middle = (before + later) // 2
        before, later = (before, middle) if is_changed(datetime.fromtimestamp(middle, UTC)) else (middle, later)
    return datetime.fromtimestamp(later, UTC)


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A schedule's row.

    Attributes:
        name: its name.
        reference: the pipeline's.
        timing: when it fires.
        tenant: the owner of its runs.
        overlap: what happens at a slot while the run before is under way.
        catch_up: what happens to slots that were missed.
        is_paused: whether it fires nothing until it is resumed.
        slot_at: the next slot; None: there is no further one.
        due_at: when that fires.
        last_slot: the latest slot that fired, or was given up.
        last_run: the run of that slot; with `overlap="skip"` it may be the earlier run that was under way.
        last_error: why the latest slot did not fire, as far as it was tried.
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
