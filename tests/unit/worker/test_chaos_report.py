"""What `flujo chaos` measures and shows, without services."""

from flujo_worker.chaos.report import (
    InvariantResult,
    Recovery,
    Report,
    Strike,
    percentiles,
    recoveries,
    violations_text,
)


def ended(key, started_at, ended_at, *, is_merged=True):
    return {"key": key, "started_at": started_at, "ended_at": ended_at, "is_merged": is_merged}


def test_victims_recover_when_they_end():
    rows = [ended("before", 1.0, 9.0), ended("other", 10.5, 11.0), ended("a", 12.0, 13.0), ended("b", 12.0, 15.5)]
    [found] = recoveries([Strike("kill", 10.0, ("before", "a", "b", "never"))], rows)
    assert found == Recovery("kill", 1, (3.0, 5.5))


def test_without_victims_the_first_attempt_that_begins_later_counts():
    rows = [ended("under way", 9.0, 10.2), ended("failed", 10.1, 10.3, is_merged=False), ended("next", 10.4, 11.0)]
    assert recoveries([Strike("flush", 10.0)], rows) == [Recovery("flush", 1, (1.0,))]


def test_a_fault_after_which_nothing_was_merged_has_no_time():
    assert recoveries([Strike("flush", 10.0)], []) == [Recovery("flush", 1, ())]


def test_time_in_which_faults_keep_a_service_away_does_not_count():
    """Each second once, however many of them keep it away; before the fault is over, and after the merge, it is no matter."""
    away = [
        Strike("restart", 12.0, away_s=1.0),
        Strike("read-only", 13.0, away_s=1.5),
        Strike("stall", 30.0, away_s=16.0),
    ]
    found = recoveries([Strike("flush", 10.0), *away], [ended("next", 14.5, 15.0)])
    assert found[0] == Recovery("flush", 1, (2.0,))
    assert found[1] == Recovery("read-only", 1, (1.0,))


def test_percentiles_are_values_that_were_measured():
    assert percentiles([float(n) for n in range(1, 102)]) == {"p50_s": 51.0, "p99_s": 100.0, "max_s": 101.0}
    assert percentiles([]) == {"p50_s": None, "p99_s": None, "max_s": None}


def test_violations_are_counted_and_named():
    verdicts = [
        InvariantResult("merged_once", "No result is merged twice.", ["attempt a"]),
        InvariantResult("scopes_closed", "", []),
    ]
    report = Report(7, 60.0, 1.234, 3, {"runs": 5}, [Recovery("kill", 2, (1.0, 2.0))], verdicts)
    assert (report.violations, report.tree()["violations"], report.tree()["runs"]) == (1, 1, 5)
    assert report.tree()["recovery"][-1] == {"fault": "all", "times": 2, "p50_s": 1.0, "p99_s": 2.0, "max_s": 2.0}
    assert violations_text(report) == "merged_once: attempt a"
