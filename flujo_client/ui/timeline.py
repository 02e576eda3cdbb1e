"""Where a run's time went, as bars: pale while something waited, solid while it worked; a fan-out by how much of it ran at once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from flujo_client.explain.sentence import span
from flujo_client.explain.words import short_id
from flujo_client.ui.tree import BUCKETS, TreeLine

WIDTH: Final = 1000
LEFT: Final = 190
ROW: Final = 24
TOP: Final = 22
_RIGHT: Final = 120
"""The room for labels at the end of the bars."""
_ROWS: Final = 80
_CHILDREN: Final = 12
"""The children of a container that have a row."""
_TICKS: Final = 7
_STEPS_S: Final = 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400, 604800
_PALEST: Final = 0.18


class Bar(NamedTuple):
    """A part of a row's time."""

    x: float
    width: float
    kind: str
    """`wait`, `work`, or `many` for a bucket of a fan-out."""
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """A line of the tree with its bars."""

    line: TreeLine
    y: int
    bars: Sequence[Bar]
    label: str

    @property
    def label_x(self) -> float:
        """Return where its label begins: behind its last bar."""
        return min(max((bar.x + bar.width for bar in self.bars), default=LEFT) + 6, WIDTH - _RIGHT + 6)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The rows that are drawn, and the times at the top."""

    rows: Sequence[TimelineRow]
    ticks: Sequence[tuple[float, str]]
    length: str

    @property
    def height(self) -> int:
        return TOP + ROW * len(self.rows) + 4


def draw_timeline(lines: Iterable[TreeLine], begin: datetime, end: datetime, *, is_over: bool) -> Timeline:
    """Draw the lines of a tree between two times; of a container's children the first twelve."""
    total = max((end - begin).total_seconds(), 0.001)
    scale = _Scale(begin, end, (WIDTH - LEFT - _RIGHT) / total, is_over=is_over)
    step = next((each for each in _STEPS_S if total / each <= _TICKS), total)
    ticks = [(LEFT + at * step * scale.unit, span(at * step) if at else "0") for at in range(int(total / step) + 1)]
    drawn = enumerate(_few(lines))
    return Timeline([scale.row(line, TOP + ROW * place) for place, line in drawn], ticks, span(total))


def _few(lines: Iterable[TreeLine]) -> Iterator[TreeLine]:
    """Yield the lines to be drawn. Of more than twelve at one place below the top, the first twelve, with what is in them."""
    shown: dict[int, int] = {}
    count = 0
    for line in lines:
        shown = {level: n for level, n in shown.items() if level <= line.level}
        shown[line.level] = shown.get(line.level, 0) + 1
        if count < _ROWS and all(n <= _CHILDREN for level, n in shown.items() if level):
            count += 1
            yield line


@dataclass(frozen=True, slots=True)
class _Scale:
    begin: datetime
    end: datetime
    unit: float
    """The width of a second."""
    is_over: bool

    def row(self, line: TreeLine, y: int) -> TimelineRow:
        if line.taken_from is not None:
            return TimelineRow(line, y, (), f"taken over from {short_id(line.taken_from)}")
        if not line.has_run or line.began is None:
            return TimelineRow(line, y, (), line.word)
        took = span(max(0.0, ((line.ended or self.end) - line.began).total_seconds()))
        label = f"{took}, {len(line.tries)} attempts" if len(line.tries) > 1 else took
        return TimelineRow(line, y, list(self._bars(line)), label)

    def _bars(self, line: TreeLine) -> Iterator[Bar]:
        if line.at_once and sum(line.counts.values()) > 1:
            most, width = max(line.at_once.values()), (WIDTH - LEFT - _RIGHT) / BUCKETS
            for bucket, count in line.at_once.items():
                yield Bar(LEFT + (bucket - 1) * width, width, "many", _PALEST + (1 - _PALEST) * count / most)
        elif line.counts or not line.tries:
            yield self._bar(line.began, line.ended, "wait" if line.tone == "wait" else "work")
        else:
            for each in line.tries:
                yield self._bar(each["created_at"], each["started_at"] or each["ended_at"], "wait")
                if each["started_at"] is not None:
                    yield self._bar(each["started_at"], each["ended_at"], "work")

    def _bar(self, began: datetime | None, ended: datetime | None, kind: str) -> Bar:
        most, ends = (self.end - self.begin).total_seconds(), (began or self.end, ended or self.end)
        x, end = (LEFT + self.unit * min(max((at - self.begin).total_seconds(), 0.0), most) for at in ends)
        return Bar(x, max(2.0, end - x), kind)
