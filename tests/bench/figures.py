"""The benchmark's arithmetic: medians and their spread, percentiles, ratios, and whether a target is met. Pure."""

import math
import operator
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.bench.workloads import Row


class Spread(NamedTuple):
    """A median, and the smallest and largest of how many values."""

    median: float
    low: float
    high: float
    count: int


class Samples:
    """Values by side and figure, over all rounds, and what failed."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._values: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, side: str, figures: Mapping[str, Iterable[float]]) -> None:
        for figure, values in figures.items():
            self._values[side][figure].extend(values)

    @property
    def sides(self) -> list[str]:
        return list(self._values)

    def of(self, side: str) -> dict[str, list[float]]:
        return dict(self._values[side]) if side in self._values else {}

    def baseline(self, figure: str, sides: Iterable[str]) -> list[float]:
        """Return the values of the side with the lowest median; empty when none has the figure."""
        found = [values for side in sides if (values := self.of(side).get(figure))]
        return min(found, key=statistics.median, default=[])


class Result(NamedTuple):
    """What a row comes to.

    Attributes:
        value: the ratio or the difference, or ours if there is no baseline.
        quickest: the same of the lowest values, which other work on the machine disturbs least.
        is_met: whether it meets the target; None without a target.
    """

    row: Row
    ours: Spread
    baseline: Spread | None
    value: float
    quickest: float | None
    is_met: bool | None


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values), len(values))


def percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def judge(row: Row, samples: Samples) -> Result | None:
    """Compare what one row compares; None when it was not measured."""
    values = samples.of("ours").get(row.figure)
    if not values:
        return None
    centre = percentile(values, 0.99) if row.statistic == "p99" else statistics.median(values)
    if row.against is None:
        return Result(row, spread(values), None, centre, None, meets(row, centre))
    base = samples.baseline(row.against, [side for side in samples.sides if side.startswith(row.sides)])
    if not base:
        return None
    compare = operator.sub if row.is_beyond else operator.truediv
    value, quickest = compare(centre, statistics.median(base)), compare(min(values), min(base))
    if row.is_throughput:
        value, quickest = 1 / value, 1 / quickest
    return Result(row, spread(values), spread(base), value, quickest, meets(row, value))


def meets(row: Row, value: float) -> bool | None:
    if row.target is None:
        return None
    return value >= row.target if row.is_throughput else value <= row.target


def per_step(before: Mapping[str, float], after: Mapping[str, float], steps: int, prefix: str = "") -> dict[str, float]:
    """Return how much of each was used for one step."""
    return {prefix + name: (after[name] - before[name]) / steps for name in after}


def hot_share(updates: float, hot: float) -> float:
    """Return the share of updates that touched no index (heap-only tuples)."""
    return hot / updates if updates else 0.0
