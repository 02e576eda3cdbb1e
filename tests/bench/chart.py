"""Draws the benchmark's figures: how long ours takes, in parts of what bare Celery takes.

python -m tests.bench.chart docs/performance.json > docs/performance.svg
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape

from tests.bench.workloads import ROWS

LEFT, PER_UNIT, LINE, TOP, WIDTH = 330, 190, 26, 58, 800
_MOST: Final = 2.3
"""Where a bar is cut off, as a ratio."""


class Bar(NamedTuple):
    """One workload.

    Attributes:
        title: what is compared.
        ratio: our time by that of bare Celery.
        target: the most it may be; None without a target.
    """

    title: str
    ratio: float
    target: float | None

    @property
    def verdict(self) -> str:
        """Return the class that colours it."""
        if self.target is None:
            return "free"
        return "met" if self.ratio <= self.target else "missed"


def bars(results: Mapping[str, Any]) -> list[Bar]:
    """Return a bar for each row that has bare Celery as its baseline; a throughput becomes the time that a step takes."""
    values = {each["what"]: each["value"] for each in results["rows"]}
    return [
        Bar(row.title, 1 / values[row.title], row.target and 1 / row.target)
        if row.is_throughput
        else Bar(row.title, values[row.title], row.target)
        for row in ROWS
        if row.against and row.sides == "bare" and row.title in values
    ]


def draw(results: Mapping[str, Any]) -> str:
    """Draw the chart as SVG: a bar for each row, a tick at its target, and a line where bare Celery is."""
    shown = bars(results)
    height = TOP + LINE * len(shown) + 34
    one = LEFT + PER_UNIT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img"',
            '  aria-labelledby="title">',
            '  <title id="title">Time of a durable step relative to bare Celery</title>',
            "  <style>",
            "    text { font: 12px system-ui, sans-serif; fill: #1f2733; }",
            "    .met { fill: #2f8f5b; } .missed { fill: #c77700; } .free { fill: #8795ab; } .target { stroke: #1f2733; stroke-width: 2; }",
            "    .bare { stroke: #77839a; stroke-dasharray: 4 3; }",
            "  </style>",
            f'  <rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
            '  <text x="16" y="26" style="font-size: 15px; font-weight: 600">Time relative to bare Celery: shorter is better</text>',
            f'  <text x="{one}" y="48" text-anchor="middle">1 = bare Celery, not durable</text>',
            *(line for place, bar in enumerate(shown) for line in _drawn(bar, TOP + LINE * place)),
            f'  <line class="bare" x1="{one}" y1="{TOP - 4}" x2="{one}" y2="{height - 30}"/>',
            f'  <text x="16" y="{height - 12}">Black tick: target. Green: met. Orange: not met. Grey: no target.</text>',
            "</svg>",
            "",
        ]
    )


def _drawn(bar: Bar, top: int) -> list[str]:
    end = LEFT + PER_UNIT * min(bar.ratio, _MOST)
    beyond = max(end, LEFT + PER_UNIT * (bar.target or 0)) + 6
    lines = [
        f'  <text x="16" y="{top + 16}">{escape(bar.title)}</text>',
        f'  <rect class="{bar.verdict}" x="{LEFT}" y="{top + 3}" width="{end - LEFT:.0f}" height="18"/>',
        f'  <text x="{beyond:.0f}" y="{top + 16}">{bar.ratio:.2f}</text>',
    ]
    if bar.target is not None:
        at = LEFT + PER_UNIT * bar.target
        lines.append(f'  <line class="target" x1="{at:.0f}" y1="{top}" x2="{at:.0f}" y2="{top + 24}"/>')
    return lines


if __name__ == "__main__":
    print(draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), end="")
