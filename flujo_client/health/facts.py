"""What Postgres and Redis answered, as values: one reading for the command and the scheduled task. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime


class RunCount(NamedTuple):
    """So many runs of one pipeline that began in one part of the window."""

    half: int | None
    bucket: int | None
    pipeline: str
    runs: int


class Counter(NamedTuple):
    """One of the counters of events.md, summed over the attempts that are alike; or `attempts`, how many those were."""

    half: int | None
    bucket: int | None
    pipeline: str
    step: str
    agent: str | None
    model: str | None
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class ArosFacts:
    """The answer to `sql/aros.sql`: the window, the runs looked at, and what AROS counted in them."""

    at: datetime
    since: datetime | None
    runs: Sequence[RunCount] = ()
    counters: Sequence[Counter] = ()


@dataclass(frozen=True, slots=True)
class FactGroup:
    """Things of one kind: how many, the age of the oldest in seconds, and some by name."""

    count: int = 0
    oldest_s: float | None = None
    named: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Depths:
    """The answer of Redis: messages by queue; or why there is none."""

    messages: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The answer to `sql/machine.sql`.

    Attributes:
        found: by kind, what there is of it; a kind that is not there was not found.
        queues: attempts that could begin, by queue.
        live_workers: processes whose lease holds.
        sweep_age_s: seconds since the last sweep; None when there was none.
        sweep_lag_s: seconds that workers have lived since then without a sweep; None when none lives.
        events_dropped: lines that were not kept.
    """

    found: Mapping[str, FactGroup] = field(default_factory=dict)
    queues: Mapping[str, int] = field(default_factory=dict)
    live_workers: int = 0
    sweep_age_s: float | None = None
    sweep_lag_s: float | None = None
    events_dropped: int = 0


def read_aros(row: Mapping[str, Any]) -> ArosFacts:
    """Read the row of `sql/aros.sql`."""
    return ArosFacts(
        at=row["at"].astimezone(UTC),
        since=row["since"] and row["since"].astimezone(UTC),
        runs=tuple(RunCount(*each) for each in row["runs"]),
        counters=tuple(Counter(*each) for each in row["counts"]),
    )


def read_machine(row: Mapping[str, Any]) -> MachineFacts:
    """Read the row of `sql/machine.sql`."""
    plain = ("queues", "live_workers", "sweep_age_s", "sweep_lag_s", "events_dropped")
    found = {
        what: FactGroup(each["count"], each["oldest_s"], tuple(each["named"]))
        for what, each in sorted(row["found"].items())
    }
    return MachineFacts(found=found, **{name: row[name] for name in plain})
