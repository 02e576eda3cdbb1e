"""Migrations: numbered SQL, forward only, applied once however many processes start at the same instant."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import psycopg

from flujo_client.config import mask_url
from flujo_client.errors import SchemaVersionError, ServiceUnreachable

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
        ServiceUnreachable: Postgres does not answer.
        SchemaVersionError: the database is newer than this code.
    """
    with _connect(url) as connection, connection.transaction():
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
    with _connect(url) as connection:
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


def _connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    try:
        return psycopg.connect(url, connect_timeout=10, autocommit=True)
    except (psycopg.OperationalError, psycopg.ProgrammingError) as error:  # the latter: it is no connection string
        raise ServiceUnreachable(
            f"Postgres does not answer at {mask_url(url)}: {str(error).strip().splitlines()[0]}",
            suggestion="check FLUJO_DATABASE_URL, or unset it and FLUJO_BROKER_URL to use embedded services",
        ) from error
