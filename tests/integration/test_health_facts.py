"""What the health check's statements find in Postgres: the window, its parts and filters, and the report of a trace set (SYS-26)."""

import io
import json
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row
from rich.console import Console

from flujo_client.cli.health import health_text
from flujo_client.config.models import Health
from flujo_client.health.aggregate import build
from flujo_client.health.facts import Depths, EndCount, HealthQuery, MachineFacts
from flujo_client.health.report import to_csv, to_json
from tests.support.health_traces import AT, TRACES, Traced, aros_facts, clerk, plant

pytestmark = pytest.mark.services

GOLDEN = Path(__file__).parents[1] / "golden/health"
ENDED = (
    EndCount("window", "letters", "succeeded", 2, 0),
    EndCount("window", "orders", "succeeded", 4, 0),
    EndCount("baseline", "orders", "succeeded", 1, 0),
)
WELL = MachineFacts(live_workers=2, sweep_age_s=0.4, sweep_lag_s=0.4, ended=ENDED)
EMPTY_QUEUES = Depths({"flujo.attempts": 0, "flujo.control": 0})


@pytest.fixture(scope="module")
def database_url(migrated_url):
    return migrated_url


@pytest.fixture
def connection(database_url):
    """A transaction that leaves nothing behind."""
    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        yield connection
        connection.rollback()


def reported(connection, **question):
    """The report as it would have been made at `AT` on a machine that is well."""
    asked = HealthQuery(**question)
    facts = aros_facts(connection, asked)
    since = facts.since and AT - (facts.at - facts.since)
    return build(asked, replace(facts, at=AT, since=since), WELL, EMPTY_QUEUES, Health())


def drawn(report):
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(health_text(report, {}))
    return console.file.getvalue()


def assert_golden(name, text):
    file = GOLDEN / name
    if os.environ.get("WRITE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text(encoding="utf-8"), f"{name} is not what it was; WRITE_GOLDEN=1 writes it anew"


@pytest.fixture
def report(connection):
    plant(connection)
    return reported(connection, since_hours=24, buckets=4)


def test_a_trace_set_gives_this_text(report):
    """M-172, M-173, M-176, M-179, M-170: at 80 columns and without colour."""
    assert_golden("report.txt", "\n".join(line.rstrip() for line in drawn(report).splitlines()) + "\n")


def test_a_trace_set_gives_this_json(report):
    """M-184: the schema is the golden file's, and what is written is read back as it was."""
    assert_golden("report.json", to_json(report) + "\n")
    assert type(report).model_validate_json(to_json(report)) == report


def test_a_trace_set_gives_these_tables(report):
    """M-184, M-187: three files; a name that a spreadsheet would take for a formula is a text."""
    files = to_csv(report, "out.csv")
    assert sorted(files) == ["out_models.csv", "out_steps.csv", "out_transforms.csv"]
    for name, text in files.items():
        assert_golden(name.replace("out_", "report_"), text)
    assert "'=write()" in files["out_steps.csv"]


def test_each_figure_is_the_one_that_is_counted_by_hand(report):
    """M-173, U-08: interventions, refusals and attempts are distinguished; skips are told by model, prechecks by result."""
    totals, steps, models = report.totals, report.steps, report.models
    assert (totals.runs, totals.attempts, totals.coercions, totals.refused) == (6, 15, 13, 2 - 1)
    assert totals.per_100_runs == round(100 * 13 / 6, 2)
    assert (steps["read"].coercions, steps["read"].per_100_runs) == (7, 175.0)
    assert (models["local:llama"].soe_skipped, models["local:llama"].soe_skip_reasons) == (
        5,
        {"unsupported_provider": 5},
    )
    assert (steps["plan"].precheck_passed, steps["plan"].precheck_failed, steps["plan"].precheck_skipped) == (3, 1, 1)
    assert steps["plan"].precheck_failure_rate == 0.25
    assert report.transforms == {"json5": 5, "fence": 3, "str->int": 2, "json-repair": 1}
    assert (report.shadow.coercions, report.shadow.refused) == (1, 1)


def test_a_step_whose_output_was_right_shows_no_intervention(connection):
    """M-167."""
    plant(connection, [Traced("r", "p", 1, [("right", clerk())])])
    figures = reported(connection).steps["right"]
    assert (figures.coercions, figures.refused, figures.soe_applied) == (0, 0, 1)


def test_without_a_window_every_run_counts_and_nothing_is_a_trend(connection):
    """M-175, M-186: and buckets are left out with a note (M-177)."""
    plant(connection)
    report = reported(connection, limit=50, buckets=4)
    assert report.totals.runs == len(TRACES)
    assert (report.trend.last_half, report.trend.buckets) == (None, ())
    assert report.notes == ("trend buckets are left out: they divide a window, and no window was given",)


def test_without_runs_there_is_nothing_to_report(connection):
    """M-175, M-186."""
    report = reported(connection, since_hours=24, buckets=2)
    assert report.notes == ("there is nothing to report: no run has begun in the last 24 hours",)
    assert "there is nothing to report" in drawn(report)
    assert (report.verdict.status, report.steps, report.recommendations) == ("ok", {}, ())
    assert [each.coercions for each in report.trend.buckets] == [0, 0]


@pytest.mark.parametrize(
    ("hours", "half", "bucket"),
    [(24, 0, 0), (18.0001, 0, 0), (18, 0, 1), (12.0001, 0, 1), (12, 1, 2), (6, 1, 3), (0.0001, 1, 3), (0, 1, 3)],
)
def test_a_run_on_an_edge_belongs_to_the_later_part(connection, hours, half, bucket):
    """M-177: a part holds its start and not its end, but for the last, which holds the window's end."""
    plant(connection, [Traced("r", "p", hours, [("s", clerk("fence", extract=1))])])
    facts = aros_facts(connection, HealthQuery(since_hours=24, buckets=4))
    assert [(each.half, each.bucket, each.runs) for each in facts.runs] == [(half, bucket, 1)]
    assert {(each.half, each.bucket) for each in facts.counters} == {(half, bucket)}


def test_a_run_before_the_window_or_after_now_is_not_looked_at(connection):
    """M-175: the window is closed on both sides."""
    plant(connection, [Traced("old", "p", 24.0001), Traced("new", "p", -0.0001), Traced("in", "p", 24)])
    assert sum(each.runs for each in aros_facts(connection, HealthQuery(since_hours=24)).runs) == 1


def test_the_window_does_not_depend_on_the_time_zone(connection):
    """M-175: whatever the session's zone is, summer time or not."""
    plant(connection)
    told = []
    for zone in ("UTC", "America/New_York", "Asia/Kathmandu"):
        connection.execute("SELECT set_config('TimeZone', %s, true)", [zone])
        told.append(to_json(reported(connection, since_hours=24, buckets=4)))
    assert told[0] == told[1] == told[2]


def test_the_parts_meet_without_a_gap(report):
    """M-177, M-211: the buckets are equal and cover the window, and so do the halves."""
    edges = [(each.start, each.end) for each in report.trend.buckets]
    assert [start for start, _ in edges] == [AT - timedelta(hours=hours) for hours in (24, 18, 12, 6)]
    assert [end for _, end in edges] == [*[start for start, _ in edges[1:]], AT]
    assert report.trend.prev_half.end == report.trend.last_half.start == AT - timedelta(hours=12)
    assert sum(each.coercions for each in report.trend.buckets) == report.totals.coercions


@pytest.mark.parametrize(
    ("question", "runs", "coercions"),
    [
        ({"step": "read"}, 6, 7),
        ({"model": "local:llama"}, 6, 6),
        ({"pipeline": "letters"}, 2, 6),
        ({"pipeline": "shop:orders"}, 4, 7),
        ({"pipeline": "nobody's"}, 0, 0),
        ({"limit": 2}, 2, 3 + 4),
        ({"limit": 2, "pipeline": "orders", "step": "read"}, 2, 6),
    ],
)
def test_filters(connection, question, runs, coercions):
    """M-182, M-183: by step, model, pipeline's name or reference, and the newest runs."""
    plant(connection)
    totals = reported(connection, since_hours=24, **question).totals
    assert (totals.runs, totals.coercions) == (runs, coercions)


def test_a_day_is_looked_at_where_nothing_is_said(connection):
    """C-51: a window as a whole (M-175), 24 hours without a limit; `--limit 50` is the original's (§2.8)."""
    plant(connection, [Traced(f"r{number}", "p", number / 2) for number in range(60)])
    assert reported(connection).totals.runs == 48 + 1
    assert reported(connection, since_hours=48).totals.runs == 60
    assert reported(connection, limit=50).totals.runs == 50
    assert reported(connection, since_hours=24, limit=7).totals.runs == 7


def test_without_the_ledger_the_report_is_the_same(connection):
    """M-171, C-08: the report reads the traces and nothing else."""
    plant(connection)
    before = to_json(reported(connection, since_hours=24, buckets=4))
    connection.execute("DROP TABLE flujo_correction_ledger")
    connection.execute("DROP TABLE flujo_events CASCADE")
    assert to_json(reported(connection, since_hours=24, buckets=4)) == before


def test_what_others_keep_in_metadata_is_not_counted(connection):
    """Only the counters of AROS are."""
    report_of = Traced("r", "p", 1, [("s", {"hits": 7, "aros.mode": "x", "nested": {"aros.coercion.total": 3}})])
    plant(connection, [report_of])
    assert json.loads(to_json(reported(connection)))["totals"]["coercions"] == 0
