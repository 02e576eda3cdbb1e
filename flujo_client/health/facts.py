"""The query of a health check, and the answers of Postgres and Redis, as values. Pure.

The command's options and the section `[health]` make the same query, and its result is read in one way for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Self

from flujo_client.config.models import Health
from flujo_client.health.report import Fact
from flujo_client.plan.plan import OnChange

WINDOW_H: Final = 24.0
"""The hours that are examined if neither a window nor a limit is set."""
FEWEST_BUCKETS: Final = 2
NAMED: Final = 10
"""The number of problems that are listed by name."""
LONGEST_S: Final = 30.0
"""Seconds that one of the statements may take."""


@dataclass(frozen=True, slots=True)
class HealthQuery:
    """The scope of a health check: each filter is off when None.

    Attributes:
        since_hours: only runs that began or ended within these hours; 24 if there is no limit either.
        limit: the number of newest runs; all of the window when None.
        buckets: the number of equal parts of the window, in addition to its halves.
    """

    since_hours: float | None = None
    limit: int | None = None
    pipeline: str | None = None
    step: str | None = None
    model: str | None = None
    buckets: int | None = None

    @property
    def hours(self) -> float | None:
        """Return the hours that are examined; None where the limit alone decides."""
        return WINDOW_H if self.since_hours is None and self.limit is None else self.since_hours

    @property
    def parts(self) -> int | None:
        """Return the number of parts of the window; None where it cannot be divided."""
        return self.buckets if not self.notes() else None

    def notes(self) -> list[str]:
        """List what was requested but not done, and why."""
        if self.buckets is None:
            return []
        if self.hours is None:
            return ["trend buckets are left out: they divide a window, and no window was given"]
        if self.buckets < FEWEST_BUCKETS:
            return [f"trend buckets are left out: a trend needs at least {FEWEST_BUCKETS}"]
        return []

    def aros_parameters(self) -> dict[str, Any]:
        """Return the parameters of `sql/aros.sql`."""
        return {**asdict(self), "hours": self.hours, "buckets": self.parts}

    def machine_parameters(self, health: Health, on_change: OnChange = "carry_on") -> dict[str, Any]:
        """Return the parameters of `sql/machine.sql`; `on_change` is the policy of plans that name none."""
        window = {"hours": self.hours, "event_hours": self.hours or WINDOW_H, "limit": self.limit}
        given = {**window, "pipeline": self.pipeline, "named": NAMED, "on_change": on_change}
        return {**health.model_dump(), **given}

    @staticmethod
    def bounds() -> dict[str, Any]:
        """Return the parameters of `sql/bounds.sql`."""
        return {"timeout_ms": f"{LONGEST_S * 1000:.0f}"}

    def filters(self) -> Mapping[str, str]:
        given = {"pipeline": self.pipeline, "step": self.step, "model": self.model}
        return {name: value for name, value in given.items() if value is not None}


class RunCount(NamedTuple):
    """So many runs of one pipeline that began in one part of the window."""

    half: int | None
    bucket: int | None
    pipeline: str
    runs: int


class EndCount(NamedTuple):
    """So many runs of one pipeline that ended with one status in the `window`, or in the `baseline` before it; and those of them that were retried."""

    part: str
    pipeline: str
    status: str
    runs: int
    retried: int


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
    """The answer to `sql/aros.sql`: the window, the runs examined, and what AROS counted in them."""

    at: datetime
    since: datetime | None
    runs: Sequence[RunCount] = ()
    counters: Sequence[Counter] = ()


@dataclass(frozen=True, slots=True)
class Depths:
    """The answer of Redis: messages by queue, and those that workers refused; or why there is none.

    Attributes:
        refused: by reason, since Redis was emptied last.
        refused_s: seconds since the last one; None when there was none.
    """

    messages: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    refused: Mapping[str, int] = field(default_factory=dict)
    refused_s: float | None = None

    @classmethod
    def of(cls, messages: Mapping[str, int], refused: Mapping[str, int], last_at: float | None, *, now: float) -> Self:
        """Combine the broker's answers; `last_at`, when the last message was refused, and `now` are in unix seconds."""
        return cls(messages, refused=refused, refused_s=None if last_at is None else now - last_at)


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The answer to `sql/machine.sql`.

    Attributes:
        found: by kind, what there is of it; a kind that is not there was not found.
        queues: attempts that could begin, by queue.
        sweep_age_s: seconds since the last sweep; None when there was none.
        sweep_lag_s: seconds that workers have lived since then without a sweep; None when none lives.
        events_dropped: lines that were not stored.
    """

    found: Mapping[str, Fact] = field(default_factory=dict)
    queues: Mapping[str, int] = field(default_factory=dict)
    live_workers: int = 0
    sweep_age_s: float | None = None
    sweep_lag_s: float | None = None
    events_dropped: int = 0
    ended: Sequence[EndCount] = ()


def read_aros(row: Mapping[str, Any]) -> ArosFacts:
    return ArosFacts(
        at=row["at"].astimezone(UTC),
        since=row["since"] and row["since"].astimezone(UTC),
        runs=tuple(RunCount(*each) for each in row["runs"]),
        counters=tuple(Counter(*each) for each in row["counts"]),
    )


def read_machine(row: Mapping[str, Any]) -> MachineFacts:
    plain = ("queues", "live_workers", "sweep_age_s", "sweep_lag_s", "events_dropped")
    found = {what: Fact(**each) for what, each in sorted(row["found"].items())}
    ended = tuple(EndCount(*each) for each in row["ended"])
    return MachineFacts(found=found, ended=ended, **{name: row[name] for name in plain})
