"""Totals of what has ended: exact, and never less than before, whatever is added to the counters, deleted or under way."""

from dataclasses import replace

import psycopg
import pytest
from test_store_retention import A_WEEK, DAY_S, ended
from worlds import World

from flujo_client.contract.outcome import Usage
from tests.support.builders import enqueued, failed, pipeline_of, succeeded

pytestmark = pytest.mark.services
SPENT = Usage(input_tokens=10, output_tokens=5, requests=1, cost_usd=0.25, model="openai:gpt-5")


@pytest.fixture
def world(postgres):
    postgres.empty()
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("TRUNCATE flujo_tallies")
        connection.execute("UPDATE flujo_sweeps SET tallied_to = now()")
    return World(postgres)


def totals(world):
    rows = world.setting.rows("SELECT name, labels, value FROM flujo_totals")
    return {(row["name"], *sorted(row["labels"].items())): row["value"] for row in rows}


def total(world, name, **labels):
    return sum(
        value for (found, *of), value in totals(world).items() if found == name and labels.items() <= dict(of).items()
    )


def tallied(world):
    return world.setting.rows("SELECT sum(value) AS value FROM flujo_tallies")[0]["value"]


def tally(world):
    while not world.stores.retention.tally():
        pass


def test_what_ended_is_counted_by_pipeline_outcome_and_model(world):
    ended(world, name="audit", outcome=succeeded(usage=SPENT, latency_s=0.3))
    ended(world, name="audit", outcome=failed(retryable=False))
    assert total(world, "flujo_attempts_total", pipeline="audit", outcome="succeeded", queue_name="flujo.attempts") == 1
    assert total(world, "flujo_attempts_total", pipeline="audit", outcome="failed") == 1
    assert total(world, "flujo_runs_total", outcome="succeeded") == 1
    assert total(world, "flujo_attempt_duration_seconds_bucket", le="0.5") == 1
    assert total(world, "flujo_schedule_to_start_seconds_bucket", queue_name="flujo.attempts") == 2
    assert total(world, "flujo_tokens_total", model="openai:gpt-5", direction="input") == 10
    assert total(world, "flujo_cost_dollars_total", model="openai:gpt-5", pipeline="audit") == 0.25
    assert total(world, "flujo_attempt_failures_total", pipeline="audit") == 1


def test_adding_to_the_counters_changes_no_total(world):
    for name in ("audit", "brief"):
        ended(world, name=name, outcome=succeeded(usage=SPENT))
    before = totals(world)
    tally(world)
    assert tallied(world) is None, "nothing is old enough"
    world.pass_time(60)
    tally(world)
    assert tallied(world) == pytest.approx(sum(before.values()))
    tally(world)
    assert totals(world) == pytest.approx(before)
    ended(world, name="audit")
    assert total(world, "flujo_attempts_total") == 3


def test_retention_takes_nothing_back(world):
    ended(world, name="audit", outcome=succeeded(usage=SPENT))
    world.pass_time(60)
    tally(world)
    before = totals(world)
    world.pass_time(8 * DAY_S)
    assert len(world.stores.retention.prune_runs(A_WEEK, 100)) == 1
    assert totals(world) == pytest.approx(before)


def test_a_transaction_that_is_under_way_is_waited_for(world):
    """A merge has the time of its beginning: counters that were past it would miss it."""
    with psycopg.connect(world.setting.url) as other:
        [(began,)] = other.execute("SELECT now()").fetchall()
        assert world.stores.retention.tally(lag_s=0.0)
        [row] = world.setting.rows("SELECT tallied_to FROM flujo_sweeps")
        assert row["tallied_to"] <= began
    ended(world)
    assert world.stores.retention.tally(lag_s=0.0)
    assert tallied(world) == pytest.approx(sum(totals(world).values()))


def test_a_fleet_that_was_away_for_days_adds_a_little_at_a_time(world):
    ended(world)
    world.pass_time(7_200)
    ended(world)
    world.pass_time(3 * DAY_S)
    assert [world.stores.retention.tally() for _ in range(4)] == [False, False, True, True]
    assert tallied(world) == pytest.approx(sum(totals(world).values()))


def test_the_first_200_pipelines_have_names(world):
    """What users name has no end, and a series for each would have none either."""
    world.setting.execute(
        "INSERT INTO flujo_pipelines (fingerprint, reference, name, version, plan, created_at) "
        "SELECT n::text, 'm:p', 'p' || n, '1', '{}', now() - interval '1 h' FROM generate_series(1, 199) n"
    )
    ended(world, name="audit")
    ended(world, name="later")
    assert total(world, "flujo_attempts_total", pipeline="audit") == 1
    assert total(world, "flujo_attempts_total", pipeline="other") == 1
    assert total(world, "flujo_runs_total", pipeline="other") == 1


def test_work_is_listed_by_what_it_waits_for(world):
    new = world.record(enqueued(replace(pipeline_of("a"), name="audit")))
    rows = "SELECT queue, reason, count FROM flujo_waiting"
    assert world.setting.rows(rows) == [{"queue": "flujo.attempts", "reason": "unsent", "count": 1}]
    world.register_worker("w1", lease_s=1e9)
    world.claim(new)
    assert world.setting.rows(rows) == [{"queue": "flujo.attempts", "reason": "running", "count": 1}]
    for change, reason in {
        "status = 'queued'": "queued",
        "status = 'ready', waits_for = 'breaker openai:gpt-5', available_at = now() + interval '9 s'": "breaker",
        "waits_for = 'limit gpu'": "limit",
        "waits_for = NULL": "delay",
        "available_at = 'infinity'": "lane",
        "available_at = now() + interval '120 years'": "admission",
    }.items():
        world.setting.execute(f"UPDATE flujo_attempts SET {change}")
        assert [row["reason"] for row in world.setting.rows(rows)] == [reason]


def test_each_table_has_a_size(world):
    sizes = {row["name"]: row["bytes"] for row in world.setting.rows("SELECT * FROM flujo_sizes")}
    assert sizes["flujo_events"] > 0
    assert not [name for name in sizes if name.startswith("flujo_events_")]
