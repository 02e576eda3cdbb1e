"""The one filter of runs, and their outcomes in figures. Values only.

`list_runs`, `find_runs`, `lens list`, `lens stats` and all commands on many runs select by the filter; `gateway/sql/stats.sql` counts,
`gateway/sql/parts/matching.sql` has the conditions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final

from flujo_client.contract.records import LIVE_RUN, read_statuses
from flujo_client.errors import ClientError
from flujo_client.serial import stored

_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(s|min|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
LONGEST_S: Final = 876_000 * 3600.0
_KINDS: Final = (
    ("status", Collection, "a status or a list of them"),
    ("metadata", Mapping, "a mapping"),
    ("since", datetime | timedelta, "a datetime or a timedelta"),
)


def read_since(text: str) -> datetime | timedelta:
    """Read a moment, or a time until now such as 30m, 2h or 7d; raises ValueError unless it is one, from 1 s to 100 years."""
    if found := _SPAN.fullmatch(text.strip()):
        seconds = float(found[1]) * _SECONDS[found[2]]
        if not 0 < seconds <= LONGEST_S:
            raise ValueError(f"'{text}' is not in the range of 1 s to 100 years")
        return timedelta(seconds=seconds)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        message = f"'{text}' is neither a time until now such as 30m, 2h or 7d, nor a moment such as 2026-11-28T09:00"
        raise ValueError(message) from None
    return at if at.tzinfo is not None else at.astimezone()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Conditions that a run has to meet, all of them; those of None are off.

    Raises:
        ClientError: a status does not exist, `since` is a moment without a time zone, or a condition has another type.
    """

    status: str | Collection[str] | None = None
    """One status, or several."""
    pipeline: str | None = None
    """The pipeline's name or reference."""
    tenant: str | None = None
    """The owner of the run."""
    metadata: Mapping[str, Any] | None = None
    """Entries that the run's metadata contain."""
    since: datetime | timedelta | None = None
    """Enqueued at or after this moment, or within this time until now."""
    error: str | None = None
    """A text in the type, code or message of the run's error, or, for a live run, of an attempt's error. Case does not matter."""
    text: str | None = None
    """A text in the run's id, its pipeline's name, its reason or its error. Case matters in the id only."""
    step: str | None = None
    """The step that the run is at, or at which it stopped."""
    retried: bool = False
    """Among runs of an unsuccessful `status`, also those that were retried."""
    parent: str | None = None
    """The child runs of this run; with an empty text all runs that are not child runs."""
    background: bool | None = None
    """The runs of background steps, or with False all others."""
    prefix: str | None = None
    end: str | None = None
    part: str | None = None
    """`prefix`, `end`, `part`: how the id begins or ends, or what it contains."""
    ended_within_s: float | None = None
    """Ended within so many seconds until now."""

    def __post_init__(self) -> None:
        """Check what Postgres would reject, or read in its own time zone."""
        for name, kind, expected in _KINDS:
            if not isinstance(given := getattr(self, name), kind | None):
                raise ClientError(f"`{name}` must be {expected}, got a {type(given).__name__}")
        object.__setattr__(self, "status", None if self.status is None else read_statuses(self.status))
        if isinstance(self.since, datetime) and self.since.tzinfo is None:
            message = f"`since` has no time zone: {self.since.isoformat()}"
            raise ClientError(message, suggestion="use datetime.now(UTC) - timedelta(…), or give the timedelta alone")

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the conditions in SQL."""
        return {
            **{each.name: getattr(self, each.name) for each in fields(self) if each.name != "retried"},
            "status": None if self.status is None else list(self.status),
            "metadata": None if self.metadata is None else stored(dict(self.metadata), path="metadata"),
            "since": self.since if isinstance(self.since, datetime) else None,
            "within_s": self.since.total_seconds() if isinstance(self.since, timedelta) else None,
            "not_retried": self.status is not None and not self.retried,
        }


@dataclass(frozen=True, slots=True)
class EvalRecord:
    """The judgement of an attempt's output: by a validator or a reasoning precheck, or as a judged checklist or an evaluator's answer.

    `score` is None if the judge gives none, `passed` if the judge does not decide that.
    """

    at: datetime
    run: str
    pipeline: str
    address: str
    step: str
    attempt: int
    judge: str
    score: float | None
    passed: bool | None
    feedback: str | None


@dataclass(frozen=True, slots=True)
class FailingStep:
    """A step of which attempts failed: so many `failed` of so many `attempts`, in so many `runs`."""

    pipeline: str
    step: str
    failed: int
    attempts: int
    runs: int


@dataclass(frozen=True, slots=True)
class RunStats:
    """Runs that were enqueued within a window, child runs among them."""

    since: datetime
    until: datetime
    by_status: Mapping[str, int]
    """The number of runs with each status."""
    p50_s: float | None
    p95_s: float | None
    """`p50_s`, `p95_s`: seconds from enqueueing to the end, over the runs that have ended; None if none has."""
    tokens: int
    cost_usd: float
    """`tokens`, `cost_usd`: the spend of these runs until now."""
    failing: tuple[FailingStep, ...]
    """The steps with the most failed attempts, the worst first."""
    retried: int = 0
    """The number of unsuccessful runs that were retried."""

    @property
    def runs(self) -> int:
        """Return how many runs there are."""
        return sum(self.by_status.values())

    @property
    def success_rate(self) -> float | None:
        """Return which part of those that have ended, and were not retried, succeeded; None where there are none."""
        ended = sum(count for status, count in self.by_status.items() if status not in LIVE_RUN) - self.retried
        return self.by_status.get("succeeded", 0) / ended if ended else None
