"""Migrations: applied once however many start at once; another schema is refused with what to do."""

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from flujo_client.errors import SchemaVersionError, ServiceUnreachable
from flujo_worker.errors import StoreError
from flujo_worker.store.migrate import INDEX_LOCK, Migration, migrate, migrations, require_current
from tests.support.old_schema import make_schema_1

NEWEST = migrations()[-1].version
services = pytest.mark.services


@pytest.fixture
def empty(database_url):
    """A database with nothing in it."""
    execute(database_url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return database_url


def execute(url, *statements):
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def versions(url):
    return [row[0] for row in execute(url, "SELECT version FROM flujo_schema_version ORDER BY version")]


def test_migrations_are_numbered_without_a_gap():
    assert [each.version for each in migrations()] == list(range(1, NEWEST + 1))


@services
def test_a_database_is_brought_up_and_then_left_alone(empty):
    assert list(migrate(empty).applied) == list(migrations())
    assert migrate(empty) == ([], (), (), ())
    require_current(empty)
    assert versions(empty) == [each.version for each in migrations()]


INDEXED = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('flujo_runs_forked')"


@pytest.fixture
def older(empty):
    """A database of schema 1, with a live worker of that time."""
    make_schema_1(empty)
    alive = "INSERT INTO flujo_workers (id, host, pid, build, slots, lease_until, schema) VALUES "
    execute(empty, f"{alive} ('old-1', 'h', 1, '0.9', 1, now() + interval '1 min', 1)")
    return empty


@services
def test_an_older_database_is_brought_up_beside_its_workers(older):
    with pytest.raises(SchemaVersionError, match=f"schema is 1, this code needs {NEWEST}"):
        require_current(older)
    assert migrate(older) == (list(migrations()[1:]), (), (), ())
    assert (versions(older), execute(older, INDEXED)) == (list(range(1, NEWEST + 1)), [(True,)])
    require_current(older)


@services
def test_eight_at_once_build_an_index_once(older):
    barrier = threading.Barrier(8)

    def start(_):
        barrier.wait()
        return migrate(older).applied

    with ThreadPoolExecutor(8) as threads:
        applied = list(threads.map(start, range(8)))
    assert sorted(len(each) for each in applied) == [0] * 7 + [len(migrations()) - 1]
    assert execute(older, INDEXED) == [(True,)]


@services
def test_an_index_waits_for_an_old_snapshot_and_stops_no_writer(older, monkeypatch):
    """What was broken off is invalid, and the next `flujo migrate` builds it anew."""
    monkeypatch.setattr("flujo_worker.store.migrate._build_indexes", lambda *_: None)
    migrate(older)
    monkeypatch.undo()
    with psycopg.connect(older, application_name="backup") as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT FROM flujo_workers")
        migrating = ThreadPoolExecutor(1).submit(migrate, older, patience_s=1.0)
        while not execute(older, INDEXED):
            assert not migrating.done()
        writes = "UPDATE flujo_runs SET forked_from = NULL"
        execute(older, "SET statement_timeout = '3s'", writes)
        with pytest.raises(StoreError, match=r"did not get, within 1 s, locks held by pid \d+ \(postgres, backup"):
            migrating.result()
        assert versions(older) == list(range(1, NEWEST + 1))
    assert execute(older, INDEXED) == [(False,)]
    assert migrate(older).applied == []
    assert execute(older, INDEXED) == [(True,)]


@services
def test_an_index_that_another_process_builds_is_left_to_it(older):
    with psycopg.connect(older) as builder:
        builder.execute("SELECT pg_advisory_xact_lock(%s)", [INDEX_LOCK])
        assert migrate(older).applied == list(migrations()[1:])
        assert execute(older, INDEXED) == []
    migrate(older)
    assert execute(older, INDEXED) == [(True,)]


@services
def test_eight_at_once_apply_each_migration_once(empty):
    """SYS-05: migrations run concurrently safe."""
    barrier = threading.Barrier(8)

    def start(_):
        barrier.wait()
        return migrate(empty).applied

    with ThreadPoolExecutor(8) as threads:
        applied = list(threads.map(start, range(8)))
    assert sorted(len(each) for each in applied) == [0] * 7 + [len(migrations())]
    assert versions(empty) == [each.version for each in migrations()]


@services
def test_a_migration_that_fails_leaves_nothing_behind(empty):
    execute(empty, "CREATE TABLE flujo_runs (taken integer)")
    with pytest.raises(psycopg.errors.DuplicateTable):
        migrate(empty)
    assert execute(empty, "SELECT to_regclass('flujo_pipelines'), to_regclass('flujo_schema_version')") == [
        (None, None)
    ]


ALTERING = Migration(NEWEST + 1, "alter", "ALTER TABLE flujo_runs ADD COLUMN newer integer")


@services
def test_an_idle_reader_stops_no_one_else_and_is_named(empty, next_release):
    next_release(ALTERING)
    waits = []
    with psycopg.connect(empty, application_name="report") as reader:
        reader.execute("SELECT FROM flujo_runs")
        pid = reader.info.backend_pid
        migrating = ThreadPoolExecutor(1).submit(migrate, empty, patience_s=0.5, on_wait=waits.append)
        while not migrating.done():
            execute(
                empty, "SET statement_timeout = '3s'", "SELECT FROM flujo_runs"
            )  # else they queue behind the migration
        with pytest.raises(StoreError, match=r"did not get, within 0\.5 s, locks held by pid") as refused:
            migrating.result()
    assert refused.value.error_code == "LOCKED"
    assert f"pid {pid} (postgres, report, idle in transaction for" in waits[0]
    assert len(waits) == 1
    assert migrate(empty).applied == [ALTERING]


@services
def test_an_empty_database_is_refused_with_the_way_out(empty):
    with pytest.raises(SchemaVersionError, match=f"schema is 0, this code needs {NEWEST}") as caught:
        require_current(empty)
    assert caught.value.suggestion == "run `flujo migrate`"


@services
@pytest.mark.parametrize("act", [require_current, migrate])
def test_a_newer_database_is_refused_with_the_way_out(empty, act):
    migrate(empty)
    later = f"INSERT INTO flujo_schema_version (version, name, oldest) VALUES ({NEWEST + 1}, 'later', {NEWEST + 1})"
    execute(empty, later)
    with pytest.raises(SchemaVersionError, match=f"schema is {NEWEST + 1}, .* this code knows {NEWEST}") as caught:
        act(empty)
    assert "upgrade" in caught.value.suggestion


@services
@pytest.mark.parametrize("act", [require_current, migrate])
def test_a_database_of_before_the_first_release_is_refused_with_the_way_out(empty, act):
    """Its migrations had other numbers."""
    execute(empty, "CREATE TABLE flujo_schema_version (version integer PRIMARY KEY, name text)")
    execute(empty, "INSERT INTO flujo_schema_version VALUES (1, 'engine'), (2, 'scopes')")
    with pytest.raises(
        SchemaVersionError, match=r"schema is 2 of a version before 0\.1, which cannot be migrated"
    ) as caught:
        act(empty)
    assert "run `flujo migrate` on a new, empty database" in caught.value.suggestion
    assert versions(empty) == [1, 2]


@services
@pytest.mark.parametrize("act", [require_current, migrate])
def test_a_newer_database_that_older_code_can_live_with_is_taken_as_it_is(empty, act):
    """Between the migration and its restart, a worker of the release before may be started again."""
    migrate(empty)
    execute(empty, f"INSERT INTO flujo_schema_version (version, name) VALUES ({NEWEST + 1}, 'later')")
    act(empty)


FIRST = Migration(NEWEST + 1, "add", "CREATE TABLE flujo_new (a integer)")
SECOND = Migration(NEWEST + 2, "drop_old", f"-- after: {NEWEST + 1}\nCREATE TABLE flujo_newer (a integer)")
THIRD = Migration(NEWEST + 3, "next", "SELECT 1")


@pytest.fixture
def next_release(empty, monkeypatch):
    """Let code be the next release's, with these migrations besides today's; a worker of today is alive."""
    migrate(empty)
    alive = "INSERT INTO flujo_workers (id, host, pid, build, slots, lease_until, schema) VALUES "
    execute(empty, f"{alive} ('old-1', 'h', 1, '0.9', 1, now() + interval '1 min', {NEWEST})")

    def become(*added):
        known = (*migrations.__wrapped__(), *added)
        monkeypatch.setattr("flujo_worker.store.migrate.migrations", lambda: known)

    return become


def end_workers(url):
    execute(url, "UPDATE flujo_workers SET ended_at = now()")


@services
def test_a_second_half_waits_for_the_end_of_older_workers(empty, next_release):
    next_release(FIRST, SECOND)
    assert migrate(empty) == ([FIRST], [SECOND], [f"old-1 (0.9, schema {NEWEST})"], ())
    assert migrate(empty).waiting == [SECOND]
    require_current(empty)
    end_workers(empty)
    assert migrate(empty) == ([SECOND], (), (), ())
    assert execute(empty, "SELECT max(oldest) FROM flujo_schema_version") == [(NEWEST + 1,)]


@services
def test_a_worker_that_says_no_schema_is_older_than_any(empty, next_release):
    next_release(FIRST, SECOND)
    execute(empty, "UPDATE flujo_workers SET schema = NULL")
    assert migrate(empty).workers == ["old-1 (0.9, schema unknown)"]


@services
def test_what_workers_are_too_old_for_is_refused_as_a_whole(empty, next_release):
    """Two releases at once: the workers know neither half. Nothing is applied unless the operator insists."""
    next_release(FIRST, SECOND, THIRD)
    with pytest.raises(SchemaVersionError, match=f"{SECOND} needs code .* old-1") as caught:
        migrate(empty)
    assert "--ignore-workers" in caught.value.suggestion
    assert max(versions(empty)) == NEWEST
    assert migrate(empty, ignore_workers=True).applied == [FIRST, SECOND, THIRD]


@services
def test_code_that_a_second_half_has_left_behind_does_not_start(empty, next_release, monkeypatch):
    next_release(FIRST, SECOND)
    migrate(empty, ignore_workers=True)
    monkeypatch.undo()
    with pytest.raises(SchemaVersionError, match=f"needs code that knows schema {NEWEST + 1}"):
        require_current(empty)


@pytest.mark.parametrize("act", [require_current, migrate])
@pytest.mark.parametrize("rest", ["@127.0.0.1:1/db", "@127.0.0.1:1/db?connect_timeout=x", "@127.0.0.1:1/db?bogus=1"])
def test_who_does_not_answer_is_named_without_the_password(act, rest):
    with pytest.raises(ServiceUnreachable) as caught:
        act("postgresql://ana:hunter2" + rest)
    assert "ana:***@127.0.0.1:1" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "FLUJO_DATABASE_URL" in str(caught.value)


@services
def test_a_starting_worker_waits_for_postgres(empty, monkeypatch):
    """A process that ended instead would have to be started and import everything again, after its supervisor's back-off."""
    migrate(empty)
    connect, refused = psycopg.connect, []

    def refuse_twice(*args, **options):
        if len(refused) < 2:
            refused.append(1)
            raise psycopg.OperationalError("sorry, too many clients already")
        return connect(*args, **options)

    monkeypatch.setattr(psycopg, "connect", refuse_twice)
    with pytest.raises(ServiceUnreachable):
        require_current(empty)
    require_current(empty, patience_s=60)
    assert len(refused) == 2
