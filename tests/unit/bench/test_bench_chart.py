"""The chart of the benchmark: what a bar says, and that the one in the documentation shows the figures next to it."""

import json
from pathlib import Path

from tests.bench.chart import bars, draw

DOCS = Path(__file__).parents[3] / "docs"


def test_a_throughput_is_shown_as_the_time_of_a_step():
    what = "W2: 200 x 10 steps / bare chain, throughput"
    (bar,) = bars({"rows": [{"what": what, "value": 4.0}]})
    assert (bar.ratio, bar.target, bar.verdict) == (0.25, 1 / 3, "met")


def test_a_missed_target_is_another_colour():
    what = "W1: a sequential step, idle / task-sends-task"
    assert 'class="missed"' in draw({"rows": [{"what": what, "value": 1.6}]})
    assert 'class="missed"' not in draw({"rows": [{"what": what, "value": 1.2}]})


def test_the_chart_of_the_documentation_shows_its_figures():
    results = json.loads((DOCS / "performance.json").read_text(encoding="utf-8"))
    assert (DOCS / "performance.svg").read_text(encoding="utf-8") == draw(results)
    assert "](performance.svg)" in (DOCS / "performance.md").read_text(encoding="utf-8")
