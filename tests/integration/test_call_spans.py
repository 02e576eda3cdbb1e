"""The model calls of prechecks, processors, plugins and validators are spans in SQL too, made of their attempt's events (M-292, M-293)."""

from datetime import timedelta

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from tests.support.health_traces import plant_attempt, plant_run

pytestmark = pytest.mark.services

KEY = "run:0"
AGO = timedelta(minutes=1)


@pytest.fixture
def connection(migrated_url):
    """A transaction that leaves nothing behind, with one attempt that has ended."""
    with psycopg.connect(migrated_url, row_factory=dict_row) as connection:
        plant_run(connection, "run", status="succeeded", made=AGO, began=AGO, ended=timedelta())
        plant_attempt(connection, KEY, step="main", made=AGO, began=AGO, ended=timedelta())
        yield connection
        connection.rollback()


def report(connection, call, *, at=timedelta(seconds=30), **more):
    data = {"call": call, "input_tokens": 3, "output_tokens": 4, "cost_usd": 0.5, **more}
    connection.execute(
        "INSERT INTO flujo_events (at, run_id, attempt, name, data) VALUES (now() - %s::interval, 'run', %s, 'agent.usage', %s)",
        [at, KEY, Jsonb(data)],
    )


def calls(connection):
    asked = "SELECT * FROM flujo_spans WHERE run_id = 'run' AND kind = 'call' ORDER BY span_id"
    return connection.execute(asked).fetchall()


def test_each_call_is_below_its_attempt_with_what_it_spent(connection):
    for call in ("Judge", "repair", "Judge"):
        report(connection, call)
    found = calls(connection)
    assert [(each["span_id"], each["name"]) for each in found] == [
        (f"{KEY}#Judge:1", "Judge"),
        (f"{KEY}#Judge:2", "Judge"),
        (f"{KEY}#repair:1", "repair"),
    ]
    assert {(each["parent_span_id"], each["status"], each["duration_s"]) for each in found} == {
        (KEY, "succeeded", None)
    }
    assert found[0]["attributes"] == {
        "flujo.step.id": "0/main",
        "flujo.attempt_number": 1,
        "flujo.budget.actual_cost_usd": 0.5,
        "flujo.budget.actual_tokens": 7,
        "success": True,
    }


def test_the_agents_own_call_and_those_of_its_tools_are_none(connection):
    report(connection, "agent")
    report(connection, "tool", tool_call=1, tool="tool")
    assert calls(connection) == []


def test_what_is_logged_under_our_names_breaks_nothing(connection):
    report(connection, "odd", input_tokens="many", cost_usd={})
    connection.execute(
        "INSERT INTO flujo_events (run_id, attempt, name, data) VALUES ('run', %s, 'agent.usage', '[1]'), ('run', NULL, 'agent.usage', '{\"call\": \"x\"}')",
        [KEY],
    )
    [odd] = calls(connection)
    assert odd["attributes"]["flujo.budget.actual_tokens"] == 4


def test_a_call_ends_no_earlier_than_its_attempt_begins(connection):
    """The story is told by the worker's clock."""
    report(connection, "early", at=timedelta(hours=1))
    [call] = calls(connection)
    [attempt] = connection.execute("SELECT started_at FROM flujo_spans WHERE span_id = %s", [KEY]).fetchall()
    assert call["started_at"] == call["ended_at"] == attempt["started_at"]


def test_the_run_counts_them(connection):
    [before] = connection.execute("SELECT spans FROM flujo_trace WHERE run_id = 'run'").fetchall()
    report(connection, "Judge")
    [after] = connection.execute("SELECT spans FROM flujo_trace WHERE run_id = 'run'").fetchall()
    assert after["spans"] == before["spans"] + 1
