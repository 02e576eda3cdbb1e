"""The health check says that runs fail, models are cut off and messages are refused, by window and baseline; it is not ok then (C-51)."""

import json
from datetime import timedelta

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from flujo_client.cli.main import cli
from flujo_client.config.models import Health
from flujo_client.health.facts import Depths, HealthQuery
from flujo_client.health.verdict import judge, machine_of, outcomes_of
from flujo_client.transport.dead_letters import DeadLetters
from tests.support.fleet import Site
from tests.support.health_traces import machine_facts, plant_run, plant_worker, swept

pytestmark = pytest.mark.services

HOUR = timedelta(hours=1)
QUIET = Depths({"flujo.attempts": 0})


@pytest.fixture(scope="module")
def database_url(migrated_url):
    return migrated_url


@pytest.fixture
def connection(database_url):
    """A transaction that leaves nothing behind, on a machine that is well."""
    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        plant_worker(connection, "alive", lease_s=5)
        swept(connection, 0.5)
        yield connection
        connection.rollback()


def ended(connection, name, status, count, ago=HOUR, **more):
    for number in range(count):
        run = f"{name} {status} {ago} {number} {more}"
        plant_run(connection, run, name=name, status=status, began=ago, made=ago, ended=ago, **more)


def judged(connection, question=None, depths=QUIET, **health):
    """How runs ended, and the verdict's reasons by their codes."""
    settings, question = Health(**health), question or HealthQuery()
    facts = machine_facts(connection, question, settings)
    outcomes = outcomes_of(facts.ended, None if question.hours is None else settings.baseline_hours)
    verdict = judge(outcomes, machine_of(facts, depths), settings, question.hours)
    assert (verdict.status == "ok") == (not verdict.reasons)
    return outcomes, {reason.code: reason for reason in verdict.reasons}


def test_a_third_that_failed_is_not_ok(connection):
    """The report said ok while 112 of 320 runs failed."""
    ended(connection, "mails", "succeeded", 208)
    ended(connection, "mails", "failed", 100)
    ended(connection, "mails", "expired", 12)
    outcomes, reasons = judged(connection)
    assert (outcomes.window.ended, outcomes.window.failed, outcomes.window.failure_rate) == (320, 100, 0.35)
    assert reasons["failure_rate"].message == "112 of 320 runs that ended failed or expired (35.0%)"
    assert reasons["failure_rate"].named == ("mails: 112 of 320",)
    assert judged(connection, failure_rate=0.36)[1] == judged(connection, failed_runs=113)[1] == {}


def test_one_pipeline_that_fails_is_not_hidden_by_the_others(connection):
    ended(connection, "large", "succeeded", 200)
    ended(connection, "small", "failed", 3)
    _, reasons = judged(connection)
    assert reasons["failure_rate"].named == ("small: 3 of 3",)
    assert judged(connection, HealthQuery(pipeline="large"))[1] == {}


def test_a_rise_over_the_time_before_is_not_ok(connection):
    ended(connection, "p", "succeeded", 97)
    ended(connection, "p", "failed", 3)
    ended(connection, "p", "succeeded", 100, timedelta(hours=48))
    ended(connection, "p", "failed", 1, timedelta(hours=48))
    outcomes, reasons = judged(connection)
    assert (outcomes.baseline.ended, outcomes.baseline_hours) == (101, 168.0)
    assert reasons["failure_rise"].message == "3 of 100 runs that ended failed or expired (3.0%); before, 1.0% did"
    assert judged(connection, failure_rise=4)[1] == judged(connection, baseline_hours=12)[1] == {}


def test_runs_that_were_retried_count_as_their_retries(connection):
    """An operator who has dealt with them is not told again."""
    ended(connection, "p", "failed", 5, retried_as="run_x")
    ended(connection, "p", "succeeded", 5)
    outcomes, reasons = judged(connection)
    assert (outcomes.window.retried, outcomes.window.ended, outcomes.window.failure_rate) == (5, 5, 0.0)
    assert reasons == {}


def test_what_counts_is_when_a_run_ended(connection):
    """A long run that fails now is told of, however long ago it began; child runs fail with their parents."""
    for number in range(3):
        plant_run(connection, f"long {number}", status="failed", began=3 * 24 * HOUR, made=3 * 24 * HOUR, ended=HOUR)
    ended(connection, "p", "failed", 9, parent_run="x", parent_address="y")
    ended(connection, "aside", "failed", 4, parent_run="x")
    ended(connection, "old", "failed", 9, 25 * HOUR)
    outcomes, reasons = judged(connection)
    assert {name: each.failed for name, each in outcomes.pipelines.items()} == {"aside": 4, "p": 3}
    assert list(reasons) == ["failure_rate"]


def test_a_limit_takes_the_newest(connection):
    ended(connection, "p", "failed", 5, 30 * HOUR)
    ended(connection, "p", "succeeded", 8, 29 * HOUR)
    outcomes, reasons = judged(connection, HealthQuery(limit=10))
    assert (outcomes.window.succeeded, outcomes.window.failed, outcomes.baseline) == (8, 2, None)
    assert reasons == {}
    assert list(judged(connection, HealthQuery(limit=11))[1]) == ["failure_rate"]


@pytest.mark.parametrize("state", ["opened", "half_open", "closed"])
def test_a_breaker_that_is_not_closed_is_not_ok(connection, state):
    connection.execute(
        "INSERT INTO flujo_events (name, data) VALUES (%s, %s)",
        [f"flujo.breaker.{state}", Jsonb({"model": "openai:m"})],
    )
    reasons = judged(connection)[1]
    assert {code: each.named for code, each in reasons.items()} == (
        {} if state == "closed" else {"open_breakers": ("openai:m",)}
    )


def test_messages_that_were_refused_lately_are_not_ok(connection):
    refused = Depths.of({}, {"malformed": 2}, 1000.0, now=1060.0)
    reasons = judged(connection, depths=refused)[1]
    assert reasons["refused_messages"].message == "2 messages were refused, the last one 60 s ago: malformed 2"
    assert judged(connection, depths=Depths.of({}, {"malformed": 2}, 0.0, now=86_401.0))[1] == {}


@pytest.fixture(scope="module")
def site(services, tmp_path_factory):
    with Site(services, tmp_path_factory.mktemp("site")) as site:
        with site.connection() as connection:
            swept(connection, 0.5)
            ended(connection, "mails", "succeeded", 2)
            ended(connection, "mails", "failed", 4)
        yield site


def test_the_command_tells_and_ends_with_1(site):
    """It fits 80 columns; refused messages are read from Redis."""
    environment = {**site.settings.as_environment(), "COLUMNS": "80"}
    DeadLetters(site.redis).add("malformed", b"{", queue="flujo.attempts")
    told = CliRunner().invoke(cli, ["dev", "health-check"], env=environment)
    assert told.exit_code == 1
    lines = [line.rstrip() for line in told.stdout.splitlines()]
    assert lines[0].startswith("health check warn, 6 runs that began in the last 24 h")
    assert lines[3] == "  - 4 of 6 runs that ended failed or expired (66.7%)"
    assert "  ended         2 succeeded, 4 failed" in lines
    assert max(map(len, lines)) <= 80
    report = json.loads(CliRunner().invoke(cli, ["dev", "health-check", "--json"], env=environment).stdout)
    assert {each["code"] for each in report["verdict"]["reasons"]} == {"failure_rate", "refused_messages"}
    assert report["machine"]["refused_messages"] == {"malformed": 1}
    well = CliRunner().invoke(cli, ["dev", "health-check", "--since-hours", "0.5"], env=environment)
    assert (well.exit_code, "failure_rate" in well.stdout) == (1, False)
    site.redis.flushdb()
    assert CliRunner().invoke(cli, ["dev", "health-check", "--since-hours", "0.5"], env=environment).exit_code == 0
