"""Migrations: numbered SQL, forward only, applied once however many processes start at the same instant."""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from flujo_client.errors import SchemaVersionError
from flujo_client.transport.postgres import fate, options, unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK = 0x666C756A6F  # "flujo"
_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_CREATE = """
CREATE TABLE IF NOT EXISTS flujo_schema_version (
    version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()
)
"""


class Migration(NamedTuple):
    """One file of `migrations/`."""

    version: int
    name: str
    sql: str


@cache
def migrations() -> tuple[Migration, ...]:
    """Every migration this code knows, in order."""
    found = [
        Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in files("flujo_worker.store").joinpath("migrations").iterdir()
        if (match := _NAME.fullmatch(file.name))
    ]
    return tuple(sorted(found))


def migrate(url: str) -> list[Migration]:
    """Bring the database up to this code and return what was applied.

    All of it is one transaction under a transaction-level advisory lock: who comes second waits, and finds nothing to do.

    Raises:
        ServiceUnreachable: Postgres does not answer, or takes no writes.
        SchemaVersionError: the database is newer than this code.
    """
    with _connected(url) as connection, connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        connection.execute(_CREATE)
        present = _version(connection)
        _refuse_newer(present)
        pending = [each for each in migrations() if each.version > present]
        for each in pending:
            connection.execute(each.sql.encode())
            connection.execute(
                "INSERT INTO flujo_schema_version (version, name) VALUES (%s, %s)", [each.version, each.name]
            )
    return pending


def require_current(url: str) -> None:
    """Refuse a database that is older or newer than this code.

    Raises:
        SchemaVersionError: with what to do.
        ServiceUnreachable: Postgres does not answer.
    """
    with _connected(url) as connection:
        exists = connection.execute("SELECT to_regclass('flujo_schema_version') IS NOT NULL").fetchone()
        present = _version(connection) if exists and exists[0] else 0
    _refuse_newer(present)
    newest = migrations()[-1].version
    if present < newest:
        raise SchemaVersionError(
            f"the database's schema is {present}, this code needs {newest}", suggestion="run `flujo migrate`"
        )


def _refuse_newer(present: int) -> None:
    newest = migrations()[-1].version
    if present > newest:
        raise SchemaVersionError(
            f"the database's schema is {present}, this code knows {newest}", suggestion="upgrade flujo-worker here"
        )


def _version(connection: psycopg.Connection[tuple[object, ...]]) -> int:
    row = connection.execute("SELECT coalesce(max(version), 0) FROM flujo_schema_version").fetchone()
    return int(str(row[0])) if row else 0


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Connect; what Postgres refuses for now, and a URL that libpq cannot read, is told without the password."""
    try:
        with psycopg.connect(url, **options(url), autocommit=True) as connection:
            yield connection
    except psycopg.Error as error:
        if fate(error) == "ours" and error.sqlstate is not None:
            raise
        failure = unreachable(url, error)
        raise failure from failure.__cause__
