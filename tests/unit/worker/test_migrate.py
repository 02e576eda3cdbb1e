"""Migrations: applied once however many start at once; another schema is refused with what to do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from flujo_client.errors import SchemaVersionError, ServiceUnreachable
from flujo_worker.store.migrate import migrate, migrations, require_current

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
    assert [each.version for each in migrate(empty)] == [each.version for each in migrations()]
    assert migrate(empty) == []
    require_current(empty)
    assert versions(empty) == [each.version for each in migrations()]


@services
def test_eight_at_once_apply_each_migration_once(empty):
    """SYS-05: migrations run concurrently safe."""
    barrier = threading.Barrier(8)

    def start(_):
        barrier.wait()
        return migrate(empty)

    with ThreadPoolExecutor(8) as threads:
        applied = list(threads.map(start, range(8)))

    assert sorted(len(each) for each in applied) == [0] * 7 + [NEWEST]
    assert versions(empty) == [each.version for each in migrations()]


@services
def test_a_migration_that_fails_leaves_nothing_behind(empty):
    execute(empty, "CREATE TABLE flujo_runs (taken integer)")

    with pytest.raises(psycopg.errors.DuplicateTable):
        migrate(empty)
    assert execute(empty, "SELECT to_regclass('flujo_pipelines'), to_regclass('flujo_schema_version')") == [
        (None, None)
    ]


@services
def test_an_empty_database_is_refused_with_the_way_out(empty):
    with pytest.raises(SchemaVersionError, match=f"schema is 0, this code needs {NEWEST}") as caught:
        require_current(empty)
    assert caught.value.suggestion == "run `flujo migrate`"


@services
@pytest.mark.parametrize("act", [require_current, migrate])
def test_a_newer_database_is_refused_with_the_way_out(empty, act):
    migrate(empty)
    execute(empty, f"INSERT INTO flujo_schema_version (version, name) VALUES ({NEWEST + 1}, 'later')")

    with pytest.raises(SchemaVersionError, match=f"schema is {NEWEST + 1}, this code knows {NEWEST}") as caught:
        act(empty)
    assert "upgrade" in caught.value.suggestion


@pytest.mark.parametrize("act", [require_current, migrate])
@pytest.mark.parametrize("rest", ["@127.0.0.1:1/db", "@127.0.0.1:1/db?connect_timeout=x", "@127.0.0.1:1/db?bogus=1"])
def test_who_does_not_answer_is_named_without_the_password(act, rest):
    with pytest.raises(ServiceUnreachable) as caught:
        act("postgresql://ana:hunter2" + rest)

    assert "ana:***@127.0.0.1:1" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "FLUJO_DATABASE_URL" in str(caught.value)
