"""The report of `flujo chaos`: faults, violations and recovery times, as values, tables and JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Strike:
    fault: str
    over_at: float
    """When it happened, or when a lasting one ended, in Unix seconds of the server's clock."""
    victims: tuple[str, ...] = ()
    """The attempts that it interrupted, if known."""
    away_s: float = 0.0
    """For how many seconds, until its end, all processes were without Postgres or Redis."""


@dataclass(frozen=True, slots=True)
class InvariantResult:
    name: str
    promise: str
    violations: Sequence[str]


@dataclass(frozen=True, slots=True)
class Recovery:
    """How often a fault happened, and the seconds until work continued, each time that it could be measured."""

    fault: str
    times: int
    seconds: Sequence[float]


@dataclass(frozen=True, slots=True)
class Report:
    """One storm."""

    seed: int
    seconds: float
    """For how many seconds faults happened."""
    quiet_s: float
    """Seconds from the last fault until all runs had ended."""
    workers: int
    totals: Mapping[str, int]
    """Runs by their end, effects and merges, and runs that were lost in a failover."""
    recoveries: Sequence[Recovery]
    verdicts: Sequence[InvariantResult]

    @property
    def violations(self) -> int:
        return sum(len(each.violations) for each in self.verdicts)

    def tree(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "quiet_s": round(self.quiet_s, 2),
            "workers": self.workers,
            **self.totals,
            "violations": self.violations,
            "invariants": [asdict(each) for each in self.verdicts],
            "recovery": [
                {"fault": each.fault, "times": each.times, **percentiles(each.seconds)}
                for each in [*self.recoveries, overall(self.recoveries)]
            ],
        }


def recoveries(strikes: Sequence[Strike], ended: Sequence[Mapping[str, Any]]) -> list[Recovery]:
    """Measure how long after each fault work continued, from the attempts in the order of their end.

    If it is known which attempts a fault interrupted, each of them counts, until its end; else the first attempt that began after the
    fault counts, until its merge. Time in which another fault keeps Postgres or Redis away does not count.
    """
    ends = {row["key"]: row["ended_at"] for row in ended}
    merged = [(row["started_at"], row["ended_at"]) for row in ended if row["is_merged"] and row["started_at"]]
    measured: dict[str, list[float]] = {}
    for strike in strikes:
        if strike.victims:
            until = [ends[key] for key in strike.victims if ends.get(key, 0.0) > strike.over_at]
        else:
            until = [end for start, end in merged if start > strike.over_at][:1]
        measured.setdefault(strike.fault, []).extend(
            end - strike.over_at - _away(strikes, strike.over_at, end) for end in until
        )
    times = Counter(strike.fault for strike in strikes)
    return [Recovery(fault, times[fault], tuple(seconds)) for fault, seconds in sorted(measured.items())]


def _away(strikes: Sequence[Strike], start: float, end: float) -> float:
    """Return how many seconds of a time faults kept a service away, together."""
    away, reached = 0.0, start
    for since, over_at in sorted((each.over_at - each.away_s, each.over_at) for each in strikes if each.away_s):
        away += max(0.0, min(over_at, end) - max(since, reached))
        reached = max(reached, min(over_at, end))
    return away


def overall(each: Sequence[Recovery]) -> Recovery:
    return Recovery("all", sum(one.times for one in each), [second for one in each for second in one.seconds])


def percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    """Return the median, the 99th percentile and the greatest, each a value that was measured; None if there are none."""
    ordered, last = sorted(seconds), len(seconds) - 1
    shares = {"p50_s": 0.5, "p99_s": 0.99, "max_s": 1.0}
    return {name: round(ordered[round(last * share)], 2) if seconds else None for name, share in shares.items()}


def verdict_table(report: Report) -> Table:
    table = _table("Invariants", "promise", "violations")
    for each in report.verdicts:
        color = "red" if each.violations else "green"
        table.add_row(escape(each.promise), f"[{color}]{len(each.violations)}[/]")
    return table


def violations_text(report: Report) -> str:
    return "\n".join(f"{each.name}: {violation}" for each in report.verdicts for violation in each.violations[:SHOWN])


def recovery_table(report: Report) -> Table:
    table = _table("Recovery, in seconds", "fault", "times", "p50", "p99", "max")
    for each in [*report.recoveries, overall(report.recoveries)]:
        values = percentiles(each.seconds).values()
        table.add_row(each.fault, str(each.times), *("" if value is None else f"{value:.2f}" for value in values))
    return table


def _table(title: str, first: str, *figures: str) -> Table:
    table = Table(title=title, title_justify="left", expand=True)
    table.add_column(first, ratio=1)
    for name in figures:
        table.add_column(name, justify="right")
    return table


def summary(report: Report) -> str:
    totals = report.totals
    repeated = totals["effects"] - totals["merged"]
    lost = f" {totals['lost']} more were acknowledged, and lost in a failover." if totals["lost"] else ""
    return (
        f"Seed {report.seed}: {report.seconds:g} s of faults on {report.workers} workers, then {report.quiet_s:.1f} s until all had ended.\n"
        f"{totals['runs']} runs: {totals['succeeded']} succeeded, {totals['failed']} failed as they should, {totals['cancelled']} cancelled. "
        f"{totals['merged']} merges; {repeated} effects more, of attempts that were lost, failed or cancelled.{lost}"
    )
