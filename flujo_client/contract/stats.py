"""The outcomes of the runs of the last hours, in figures. Values only: Postgres counts (`gateway/sql/stats.sql`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from flujo_client.contract.records import LIVE_RUN

JUDGED: Final = "step.judged"
"""The event of a judgement."""


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
    """How many there are of each."""
    p50_s: float | None
    p95_s: float | None
    """`p50_s`, `p95_s`: seconds from being enqueued to the end, of those that have ended; None where none has."""
    tokens: int
    cost_usd: float
    """`tokens`, `cost_usd`: what they have spent until now."""
    failing: tuple[FailingStep, ...]
    """The steps with the most failed attempts, the worst first."""
    retried: int = 0
    """How many of the unsuccessful ones were retried."""

    @property
    def runs(self) -> int:
        """Return how many runs there are."""
        return sum(self.by_status.values())

    @property
    def success_rate(self) -> float | None:
        """Return which part of those that have ended, and were not retried, succeeded; None where there are none."""
        ended = sum(count for status, count in self.by_status.items() if status not in LIVE_RUN) - self.retried
        return self.by_status.get("succeeded", 0) / ended if ended else None
