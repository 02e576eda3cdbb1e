"""The scheduled health check against Postgres: one report for each slot, by any worker, stored and logged (M-012, M-188)."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row
from structlog.testing import capture_logs

from flujo_client.api.client import AsyncFlujoClient, FlujoClient
from flujo_client.api.operations import health
from flujo_client.config.manager import Settings
from flujo_client.config.models import Health
from flujo_client.errors import ClientError
from flujo_client.gateway import operator_requests as requests
from flujo_client.health import facts
from flujo_client.health.report import HealthReport
from flujo_client.transport.dead_letters import Refused
from flujo_worker.errors import DispatchError, StoreError
from flujo_worker.recovery.health import HealthCheck, question_of
from flujo_worker.store.postgres.health import HealthInPostgres
from flujo_worker.store.postgres.stores import PostgresStores
from tests.support.health_traces import plant, plant_run, plant_worker, swept
from tests.support.services import drop_database, migrated_database

pytestmark = pytest.mark.services

SECTION = {"every_s": 1e9, "trend_buckets": 4}
"""A slot so long that no test meets its end."""


GOLDEN = Path(__file__).parents[1] / "golden/health/report.json"


class Queues:
    """Empty queues, or a broker that is away."""

    def __init__(self, error=None, meanwhile=None):
        self.error, self.meanwhile, self.asked = error, meanwhile, 0

    def refused(self):
        return Refused({}, 0, None, "flujo:dead_letters")

    def depths(self, queues):
        self.asked += 1
        if self.meanwhile:
            self.meanwhile()
        if self.error:
            raise DispatchError(self.error)
        return dict.fromkeys(queues, 0)


@pytest.fixture
def database_url(services):
    url = migrated_database(services)
    yield url
    drop_database(services, url)


@pytest.fixture
def connection(database_url):
    with psycopg.connect(database_url, row_factory=dict_row, autocommit=True) as connection:
        yield connection


@pytest.fixture
def stores(database_url):
    stores = PostgresStores(database_url).open()
    yield stores
    stores.close()


@pytest.fixture
def settings(database_url, services):
    return Settings.model_validate({"database_url": database_url, "broker_url": services.broker_url, "health": SECTION})


def check(stores, settings, queues=None, **section):
    changed = settings.model_copy(update={"health": settings.health.model_copy(update=section)})
    return HealthCheck(HealthInPostgres(stores.pool), queues or Queues(), changed).check()


def stored(connection):
    return connection.execute("SELECT * FROM flujo_health_reports ORDER BY id").fetchall()


def figures(report):
    """All of a report but when it was made."""
    told = report.model_dump(mode="json", exclude={"generated_at", "window", "machine", "trend"})
    parts = [report.trend.prev_half, report.trend.last_half, *report.trend.buckets]
    return told, [part.model_dump(exclude={"start", "end"}) for part in parts]


def test_the_scheduled_report_is_the_one_the_command_gives(stores, settings, connection):
    """M-012: the same aggregator, the same options, the same figures; and it is read back in its order."""
    plant(connection)
    with FlujoClient(settings) as client:
        by_hand = client.perform(health(client.settings, question_of(settings.health)))
        made = check(stores, settings)
        read = client.ask(requests.last_report())
    assert figures(made) == figures(by_hand) == figures(HealthReport.model_validate_json(GOLDEN.read_text()))
    assert read == made
    assert list(read.steps) == ["read", "=write()", "plan", "watch"]


def test_one_report_is_stored_for_each_slot(stores, settings, connection):
    """Two beats are harmless: who comes second finds the slot taken."""
    queues = Queues()
    assert check(stores, settings, queues) is not None
    assert check(stores, settings, queues) is None
    assert (len(stored(connection)), queues.asked) == (1, 1)


def test_a_report_that_another_worker_stored_meanwhile_is_not_replaced(stores, settings, connection):
    """The advisory lock is a courtesy; the slot's key is the guard."""
    other = "INSERT INTO flujo_health_reports (slot, report) VALUES (to_timestamp(1e9), '{}')"
    assert check(stores, settings, Queues(meanwhile=lambda: connection.execute(other))) is None
    assert [row["report"] for row in stored(connection)] == [{}]


def test_many_at_once_store_one(stores, settings, connection):
    """Whoever comes while a report is being made leaves it to its maker."""
    together = threading.Barrier(6)

    def one(_):
        together.wait(10)
        return check(stores, settings)

    with ThreadPoolExecutor(6) as threads:
        made = [each for each in threads.map(one, range(6)) if each is not None]
    assert (len(made), len(stored(connection))) == (1, 1)


def test_the_newest_reports_are_kept(stores, settings, connection):
    for _ in range(5):
        check(stores, settings, keep=3)
        connection.execute("UPDATE flujo_health_reports SET slot = to_timestamp(id) WHERE slot > to_timestamp(1000)")
    assert [row["slot"].timestamp() for row in stored(connection)] == [3, 4, 5]


def test_a_line_is_logged_for_each_reason_why_the_machine_is_not_well(stores, settings, connection):
    """M-188: codes to alert on, and names to look at."""
    plant_worker(connection, "alive", lease_s=60)
    plant_worker(connection, "died", lease_s=-60)
    swept(connection, 0)
    plant_run(connection, "stuck", made=timedelta(hours=1))
    with capture_logs() as lines:
        report = check(stores, settings, Queues("the broker is away"))
    warned = {line["code"]: line for line in lines if line["event"] == "health.warn"}
    assert list(warned) == ["stuck_runs", "dead_workers", "broker_unreachable"]
    assert (warned["stuck_runs"]["named"], warned["stuck_runs"]["log_level"]) == (["stuck"], "warning")
    assert (lines[-1]["event"], lines[-1]["verdict"], report.verdict.status) == ("health.checked", "warn", "warn")


def test_a_line_is_logged_for_each_threshold_that_was_reached(stores, settings, connection):
    """M-180: what AROS did is advice; the verdict is the machine's."""
    plant(connection)
    with capture_logs() as lines:
        report = check(stores, settings)
    told = [(line["code"], line["value"]) for line in lines if line["event"] == "health.threshold"]
    assert told == [(each.code, each.value) for each in report.recommendations]
    assert ("stage_tolerant", 6) in told
    assert report.verdict.status == "ok"


def test_a_check_that_takes_too_long_is_given_up(stores, settings, connection, monkeypatch):
    """M-188: bounded time; and no report of its slot is kept, so that the next one is made."""
    monkeypatch.setattr(facts, "LONGEST_S", 0.05)
    with psycopg.connect(settings.database()) as holder:
        holder.execute("LOCK TABLE flujo_runs IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreError, match="longer than"):
            check(stores, settings)
    assert stored(connection) == []
    monkeypatch.undo()
    assert check(stores, settings) is not None


def bounded(milliseconds):
    request = requests.machine(facts.HealthQuery(), Health())
    return replace(request, bounds=replace(request.bounds, parameters={"timeout_ms": f"{milliseconds}"}))


def test_a_command_that_takes_too_long_is_given_up(settings):
    """It is not told as a database that is away; and the bounds end with it."""
    with psycopg.connect(settings.database()) as holder, FlujoClient(settings) as client:
        client.ask(bounded(10_000))
        holder.execute("LOCK TABLE flujo_runs IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(ClientError, match=r"Postgres gave up.*\n.*shorter window"):
            client.ask(bounded(50))
        holder.rollback()
        assert client.ask(replace(bounded(50), bounds=None)).live_workers == 0


async def given_up(settings):
    async with AsyncFlujoClient(settings) as client:
        with pytest.raises(ClientError, match="Postgres gave up"):
            await client.ask(bounded(50))


def test_an_awaited_command_that_takes_too_long_is_given_up(settings):
    with psycopg.connect(settings.database()) as holder:
        holder.execute("LOCK TABLE flujo_runs IN ACCESS EXCLUSIVE MODE")
        asyncio.run(given_up(settings))


def test_a_check_and_a_writer_do_not_wait_for_each_other(stores, settings, connection):
    """M-188: it reads a snapshot. A run that is being written, and not committed, is neither counted nor waited for."""
    plant(connection)
    with psycopg.connect(settings.database()) as writer:
        writer.execute("UPDATE flujo_runs SET status = 'failed'")
        writer.execute("DELETE FROM flujo_attempts")
        assert check(stores, settings).totals.coercions == 13
        writer.rollback()
