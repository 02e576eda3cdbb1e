"""Agents that were called as tools are spans in SQL too, made from their attempt's events (M-327, requirements §2.9)."""

from datetime import timedelta

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from tests.support.health_traces import plant_attempt, plant_run

pytestmark = pytest.mark.services

KEY = "run:0"
AGO = timedelta(minutes=1)


@pytest.fixture(scope="module")
def database_url(migrated_url):
    return migrated_url


@pytest.fixture
def connection(database_url):
    """A transaction that leaves nothing behind, with one attempt that has ended."""
    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        plant_run(connection, "run", status="succeeded", made=AGO, began=AGO, ended=timedelta())
        plant_attempt(connection, KEY, step="main", made=AGO, began=AGO, ended=timedelta())
        yield connection
        connection.rollback()


def tell(connection, name, call, *, at=timedelta(seconds=30), **data):
    connection.execute(
        "INSERT INTO flujo_events (at, run_id, attempt, name, data) VALUES (now() - %s::interval, 'run', %s, %s, %s)",
        [at, KEY, name, Jsonb({"tool": f"tool_{call}", "tool_call": call, **data})],
    )


def spans(connection):
    rows = connection.execute("SELECT * FROM flujo_spans WHERE run_id = 'run' AND kind = 'tool' ORDER BY span_id")
    return rows.fetchall()


def test_a_call_hangs_below_its_attempt_and_a_nested_one_below_the_call_it_was_made_in(connection):
    tell(connection, "agent_tool.called", 1, within=None, agent="planner")
    tell(connection, "agent_tool.called", 2, within=1, agent="critic")
    for call in (2, 1):
        tell(connection, "agent_tool.returned", call, latency_ms=500.0 * call)
    outer, inner = spans(connection)
    assert (outer["span_id"], outer["parent_span_id"]) == (f"{KEY}#1", KEY)
    assert (inner["span_id"], inner["parent_span_id"]) == (f"{KEY}#2", f"{KEY}#1")
    assert (inner["name"], inner["status"], inner["duration_s"]) == ("tool_2", "succeeded", 1.0)
    assert (outer["attributes"]["flujo.agent"], outer["attributes"]["flujo.step.id"]) == ("planner", "0/main")


def test_each_call_has_what_it_spent_itself(connection):
    tell(connection, "agent_tool.called", 1)
    tell(connection, "agent_tool.called", 2, within=1)
    tell(connection, "agent.usage", 2, input_tokens=5, output_tokens=2, cost_usd=0.25)
    for _ in range(2):
        tell(connection, "agent.usage", 1, input_tokens=10, output_tokens=1, cost_usd=None)
    told = [each["attributes"] for each in spans(connection)]
    assert [each.get("flujo.budget.actual_tokens") for each in told] == [22, 7]
    assert [each.get("flujo.budget.actual_cost_usd") for each in told] == [None, 0.25]


@pytest.mark.parametrize(
    ("end", "status", "feedback"),
    [
        ([], "running", None),
        ([("agent_tool.returned", {"latency_ms": 1.0})], "succeeded", None),
        ([("agent_tool.raised", {"error": "ValueError", "latency_ms": 1.0})], "failed", "ValueError"),
        (
            [
                ("agent_tool.input_invalid", {"message_preview": "'url' is missing"}),
                ("agent_tool.returned", {"latency_ms": 1.0}),
            ],
            "failed",
            "'url' is missing",
        ),
    ],
)
def test_how_a_call_ended(connection, end, status, feedback):
    tell(connection, "agent_tool.called", 1)
    for name, data in end:
        tell(connection, name, 1, **data)
    [span] = spans(connection)
    assert (span["status"], span["attributes"].get("feedback")) == (status, feedback)
    assert (span["ended_at"] is None) == (status == "running")


def test_a_worker_whose_clock_is_late_puts_no_call_before_its_attempt(connection):
    """M-293."""
    tell(connection, "agent_tool.called", 1, at=timedelta(hours=1))
    tell(connection, "agent_tool.returned", 1, at=timedelta(hours=1), latency_ms=-5)
    [span] = spans(connection)
    [attempt] = connection.execute("SELECT started_at FROM flujo_spans WHERE span_id = %s", [KEY]).fetchall()
    assert (span["started_at"], span["duration_s"]) == (attempt["started_at"], 0.0)


def test_lines_of_yours_under_our_names_break_nothing(connection):
    tell(connection, "agent_tool.called", 1)
    tell(connection, "agent_tool.returned", 1, latency_ms="soon")
    tell(connection, "agent.usage", 1, input_tokens="many", output_tokens={}, cost_usd=[])
    tell(connection, "agent_tool.returned", 7, latency_ms=1.0)
    tell(connection, "looked_up", 1)
    assert [(each["name"], each["duration_s"]) for each in spans(connection)] == [("tool_1", 0.0)]


def test_calls_are_counted_among_their_runs_spans(connection):
    [before] = connection.execute("SELECT spans FROM flujo_trace WHERE run_id = 'run'").fetchall()
    tell(connection, "agent_tool.called", 1)
    [after] = connection.execute("SELECT spans FROM flujo_trace WHERE run_id = 'run'").fetchall()
    assert after["spans"] == before["spans"] + 1


def test_a_runs_spans_are_read_by_its_own_events_alone(connection):
    """By the index on a run's story; no other run's events are looked at."""
    connection.execute("SET LOCAL enable_seqscan = off")
    rows = connection.execute("EXPLAIN SELECT * FROM flujo_spans WHERE run_id = 'run'").fetchall()
    plan = "\n".join(row["QUERY PLAN"] for row in rows)
    assert "Seq Scan on flujo_events" not in plan
    assert "Index Cond: (run_id = 'run'::text)" in plan
