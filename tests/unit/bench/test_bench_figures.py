"""The benchmark's arithmetic."""

import argparse
from pathlib import Path

import pytest

from tests.bench.__main__ import chosen
from tests.bench.figures import Samples, hot_share, judge, per_step, percentile, spread
from tests.bench.meter import rows_per_step
from tests.bench.peers import installing
from tests.bench.report import as_json
from tests.bench.workloads import BARE, CONNECTED, LIBRARY, LONG, OBSERVED, OURS, PEER, ROWS, WORKLOADS, Row


def samples(**figures: list[float]) -> Samples:
    """Ours takes what is given; bare Celery takes 4 by prefork and 2 by threads."""
    found = Samples()
    found.add("bare prefork", {"W1": [4.0, 4.0, 4.0]})
    found.add("bare threads", {"W1": [1.0, 2.0, 9.0]})
    found.add("ours", figures)
    return found


def test_the_ratio_is_that_of_the_medians_and_the_faster_bare_celery_is_the_baseline():
    result = judge(Row("", "W1", "W1", target=1.5), samples(W1=[3.0, 100.0, 2.0]))
    assert (result.value, result.quickest, result.is_met) == (1.5, 2.0, True)
    assert result.baseline == (2.0, 1.0, 9.0, 3)
    assert result.ours == (3.0, 2.0, 100.0, 3)


@pytest.mark.parametrize(("ours", "ratio", "is_met"), [(1.0, 2.0, True), (1.01, 2.0 / 1.01, False)])
def test_throughput_is_the_baselines_time_for_ours_and_must_reach_the_target(ours, ratio, is_met):
    result = judge(Row("", "W1", "W1", is_throughput=True, target=2.0), samples(W1=[ours]))
    assert result.value == pytest.approx(ratio)
    assert result.is_met is is_met


def test_a_figure_just_above_its_target_does_not_meet_it():
    assert judge(Row("", "W1", "W1", target=1.25), samples(W1=[2.501])).is_met is False


def test_a_row_of_our_own_figures_leaves_bare_celery_alone():
    row = Row("", "late", "early", sides="ours", target=1.2)
    assert judge(row, samples(late=[6.0], early=[5.0])).value == pytest.approx(1.2)
    assert judge(row, samples(late=[6.0], W1=[1.0])) is None


def test_what_is_beyond_a_library_is_a_difference():
    found = samples(W9=[10.5, 10.75, 10.5])
    found.add("library", {"W9": [10.25, 10.0, 10.5]})
    result = judge(Row("", "W9", "W9", sides="library", is_beyond=True, target=0.3), found)
    assert (result.value, result.quickest, result.is_met) == (0.25, 0.5, True)


def test_a_row_without_a_baseline_is_judged_by_its_value():
    result = judge(Row("", "W6", target=1.5), samples(W6=[1.4, 1.6, 1.5]))
    assert (result.value, result.baseline, result.is_met) == (1.5, None, True)


def test_p99_is_the_value_that_at_most_one_of_a_hundred_exceeds():
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile(range(1, 51), 0.99) == 50
    assert percentile([7.0], 0.99) == 7.0
    assert judge(Row("", "W7", statistic="p99", target=10.0), samples(W7=[1.0] * 49 + [11.0])).is_met is False


def test_a_row_that_was_not_measured_is_left_out():
    assert judge(Row("", "W2", "W2"), samples(W1=[1.0])) is None
    assert judge(Row("", "W2", "W2"), samples(W2=[1.0])) is None


def test_values_of_several_rounds_are_one_spread():
    found = samples(W1=[3.0])
    found.add("ours", {"W1": [1.0, 2.0]})
    assert spread(found.of("ours")["W1"]) == (2.0, 1.0, 3.0, 3)


def test_what_was_used_is_told_for_one_step():
    assert per_step({"client": 5.0}, {"client": 25.0}, 10, "W1: ") == {"W1: client": 2.0}


def test_the_share_of_hot_updates_of_no_updates_is_none_of_them():
    assert (hot_share(4.0, 1.0), hot_share(0.0, 0.0)) == (0.25, 0.0)


def test_every_row_compares_what_some_side_measures():
    more = {"W1 gap", "W4 early", "W4 late", "W4 second", "W4 last", "W4 second bytes", "W4 last bytes"}
    held = {"W6 memory", "W6 threads"} | {
        f"{name}, {to} connections" for name in CONNECTED for to in ("Postgres", "Redis")
    }
    agents = {f"W8 {name}" for name in ("1 processor", "1 clock", "1 transactions", "16 processor", "16 clock")} | {
        "W8 16 transactions",
        "W8 replay",
        "W8 own",
    }
    library = LIBRARY | {"W9 processor ms: client"}
    others = {"ours": OURS | more | agents, "bare": BARE, "library": library, "DBOS": agents}
    for row in ROWS:
        assert row.figure in OURS | more | held | agents | {"W9 processor ms: workers"}, row
        assert row.against is None or row.against in others[row.sides], row


def test_every_side_offers_workloads_of_the_table():
    assert set(WORKLOADS) >= BARE | OURS | PEER | LIBRARY


def test_the_json_says_what_is_not_met():
    told = as_json(samples(W1=[4.0]))
    assert told["rows"] == [
        {"what": "W1: a sequential step, idle / task-sends-task", "value": 2.0, "target": 1.25, "met": False}
    ]
    assert told["sides"]["bare threads"]["W1"] == {
        "median": 2.0,
        "min": 1.0,
        "max": 9.0,
        "p99": 9.0,
        "count": 3,
        "values": [1.0, 2.0, 9.0],
    }


def test_a_steps_dead_tuples_are_what_updates_and_deletes_left_behind():
    before = {"WAL bytes": 100.0, "commits": 1.0, "updates": 4.0, "deletes": 0.0, "HOT updates": 1.0}
    after = {"WAL bytes": 500.0, "commits": 9.0, "updates": 8.0, "deletes": 2.0, "HOT updates": 2.0}
    told = {"WAL bytes": 200.0, "commits": 4.0, "dead tuples": 3.0, "HOT share": 0.25}
    assert rows_per_step(before, after, 2) == told


def test_every_project_has_a_side():
    folder = Path(installing.__file__).parent
    assert {f"side_{each.name.lower()}.py" for each in installing.PROJECTS} == {
        each.name for each in folder.glob("side_*.py")
    }


@pytest.mark.parametrize(
    ("options", "workloads"),
    [
        ({"only": ["W3", "one chain, l"]}, {"W3 100", "W3 1000", "W3 further", "one chain, limits"}),
        ({"peers": True}, PEER),
        ({"observed": True}, OBSERVED),
        ({"streamed": True}, OBSERVED),
        ({}, set(WORKLOADS)),
        ({"base": "v1"}, set(WORKLOADS) - LONG),
    ],
)
def test_all_workloads_are_measured_unless_some_are_chosen(options, workloads):
    unset = {"only": None, "peers": False, "observed": False, "streamed": False, "base": None}
    given = argparse.Namespace(**unset | options)
    assert chosen(given) == workloads
