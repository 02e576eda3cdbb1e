"""Migrations under data: what was recorded by the schema before continues, and so does code that knows only that one."""

import psycopg
import pytest
from psycopg.rows import dict_row

from flujo_client.address import ROOT
from flujo_client.contract.outcome import Correction
from flujo_client.serial import dumps
from flujo_worker.domain.values import AttemptReport, CloseAttempt, Decision, UpdateScope
from flujo_worker.ports import BrokerSnapshot
from flujo_worker.store.migrate import migrate, migrations
from flujo_worker.store.postgres.store import PostgresStore
from tests.support.builders import enqueued, member, pipeline_of, succeeded

pytestmark = pytest.mark.services

BEFORE = 3
COLUMNS = "id, fingerprint, reference, name, input, tenant, queue, digest, metadata"


@pytest.fixture
def connection(database_url):
    """A database of the schema before these migrations."""
    with psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        connection.execute(
            "CREATE TABLE flujo_schema_version (version integer PRIMARY KEY, name text, applied_at date)"
        )
        for each in migrations()[:BEFORE]:
            connection.execute(each.sql.encode())
            connection.execute("INSERT INTO flujo_schema_version VALUES (%s, %s)", [each.version, each.name])
        yield connection


@pytest.fixture
def store(database_url, connection):
    store = PostgresStore(database_url).open()
    yield store
    store.close()


def record_as_before(connection, new):
    """What code of that schema records, column by column."""
    first, ticket = new.first, new.first.ticket
    connection.execute(
        "INSERT INTO flujo_pipelines VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
        [ticket.fingerprint, ticket.reference, new.plan.name, new.plan.version, dumps(new.plan.to_tree()).decode()],
    )
    connection.execute(
        f"INSERT INTO flujo_runs ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, '{{}}')",
        [ticket.run, ticket.fingerprint, ticket.reference, "p", bytes(first.input), "", ticket.queue, new.digest],
    )
    connection.execute(
        "INSERT INTO flujo_scopes (run_id, address, output) VALUES (%s, %s, %s)", [ticket.run, ROOT, bytes(first.input)]
    )
    connection.execute(
        "INSERT INTO flujo_attempts (key, run_id, address, step, number, queue) VALUES (%s, %s, %s, %s, 1, %s)",
        [first.key, ticket.run, ROOT, first.step, first.queue],
    )


def done(envelope, fence):
    """The decision by which a run of one step ends its step, with a repair, and stays open."""
    repaired = Correction(envelope.step, None, None, None, "1", "syntactic", 1, ("strip-fence",), 0.0)
    return Decision(
        AttemptReport(envelope, fence, succeeded(corrections=(repaired,))),
        CloseAttempt("succeeded"),
        (UpdateScope(ROOT, 0, 1),),
    )


def ledger(connection):
    return connection.execute("SELECT run_id FROM flujo_correction_ledger").fetchall()


def files(connection):
    """The files that hold the tables' rows; a rewrite makes a new one."""
    rows = connection.execute("SELECT relname, relfilenode FROM pg_class WHERE relkind = 'r' AND relname ~ '^flujo_'")
    return {(row["relname"], row["relfilenode"]) for row in rows.fetchall()}


def test_no_row_is_rewritten(connection, database_url):
    """But for the budgets, which no one wrote to before limits were there."""
    record_as_before(connection, enqueued())
    before = {file for file in files(connection) if file[0] != "flujo_budgets"}
    migrate(database_url)

    assert before <= files(connection)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_older_code_recorded_is_carried_on(connection, database_url, store, when):
    """Clients are restarted last: they record by the schema they know, before and after (SYS-05)."""
    new = enqueued(pipeline_of("a"))
    if when == "before":
        record_as_before(connection, new)
    migrate(database_url)
    if when == "after":
        record_as_before(connection, new)
    store.register_worker(member("w1"), 30.0)

    [due] = store.due(BrokerSnapshot(0.0, {}), judge="w1", max_lost=2, limit=10)
    assert due.envelope == new.first
    assert store.commit(done(due.envelope, store.claim(new.first.key, "w1", max_lost=2).fence)).verdict == "merged"
    assert [row["run_id"] for row in ledger(connection)] == [new.first.ticket.run]


def test_an_end_without_a_time_gets_one_and_what_is_live_is_found(connection, database_url, store):
    """0020 finds live attempts by their missing end. Someone's hand may have ended one without it, beside a live one."""
    new = enqueued(pipeline_of("a"))
    for each in migrations()[BEFORE:19]:
        connection.execute(each.sql.encode())
        connection.execute("INSERT INTO flujo_schema_version VALUES (%s, %s)", [each.version, each.name])
    record_as_before(connection, new)
    connection.execute(
        "INSERT INTO flujo_attempts (key, run_id, address, step, number, queue, status) SELECT key || '0', run_id, address, step, 2, queue, 'failed' FROM flujo_attempts"
    )
    migrate(database_url)

    [due] = store.due(BrokerSnapshot(0.0, {}), judge="w1", max_lost=2, limit=10)
    assert due.envelope == new.first
    ended = connection.execute("SELECT ended_at = created_at AS set FROM flujo_attempts WHERE status = 'failed'")
    assert ended.fetchall() == [{"set": True}]
