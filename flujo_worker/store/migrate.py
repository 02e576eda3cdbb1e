"""Migrations: numbered SQL, forward only, applied once however many processes start at the same instant.

A new database gets `schema.sql`, the schema of the newest migration, and has all of them then.

A change that running workers of the release before could not live with comes in two halves: a migration that both can live with, and one
that waits for the end of the older workers. The second says so in a separate line, `-- after: 5`: it is for code that knows schema 5. An index of
a table that may be large is in a line `-- index: name ON …`: it is built after the migration, without stopping writers. New tables, views and
functions are written once: a line `-- from schema.sql: …` names those that the newest migration to change them takes from there.
"""

from __future__ import annotations

import logging
import random
import re
import time
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg.rows import class_row

from flujo_client.contract.deployment import FIRST_MIGRATION, LockHolder, SchemaVersion
from flujo_client.errors import SchemaVersionError, ServiceUnreachable, SettingsError
from flujo_client.transport.postgres import fate, has_own_session, options, unreachable
from flujo_worker.errors import StoreError
from flujo_worker.store.postgres.statements import CLIENT, statement
from flujo_worker.store.roles import grant_roles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Connection = psycopg.Connection[tuple[object, ...]]

logger = logging.getLogger(__name__)

LOCK = 0x666C756A6F  # "flujo"
INDEX_LOCK = LOCK + 1
LOCKS_S = 60.0
"""Seconds that a migration tries to get its locks, unless the caller says otherwise."""
START_PATIENCE_S, RETRY_EVERY_S = 10.0, 0.25
"""Seconds that a starting worker waits for Postgres, and about how often it tries: starting its process again would cost more."""
_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_AFTER = re.compile(r"^-- after: (\d+)$", re.MULTILINE)
_INDEX = re.compile(r"^-- index: ((\w+) ON .+)$", re.MULTILINE)
_FROM_SCHEMA = re.compile(r"^-- from schema\.sql: (.+)$", re.MULTILINE)
_CREATE = """
CREATE TABLE IF NOT EXISTS flujo_schema_version (
    version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now(), oldest integer NOT NULL DEFAULT 0
)
"""
_AS_OWNER = """
SELECT set_config('role', r.rolname, %s) FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
WHERE c.oid = to_regclass('flujo_schema_version') AND NOT r.rolcanlogin AND pg_has_role(r.oid, 'MEMBER')
"""
"""A role that cannot log in stays the owner of its tables, with its default privileges."""
_OLDER = """
SELECT id || ' (' || build || ', schema ' || coalesce(schema::text, 'unknown') || ')' FROM flujo_workers
WHERE ended_at IS NULL AND lease_until > now() AND coalesce(schema, 0) < %s ORDER BY id
"""
_TRY_INDEX_LOCK = f"SELECT pg_try_advisory_xact_lock({INDEX_LOCK})".encode()
"""Without parameters: a portal of the extended protocol would keep its snapshot, which an index that is built waits for."""
_MISSING = """
SELECT n FROM unnest(%s::text[]) AS n WHERE (SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(n)) IS NOT TRUE
"""


class Migration(NamedTuple):
    version: int
    name: str
    sql: str

    @property
    def after(self) -> int:
        """Return the oldest schema whose code can live with it; 0 if that of the release before can."""
        found = _AFTER.search(self.sql)
        return int(found[1]) if found else 0

    @property
    def statements(self) -> bytes:
        """Return its SQL with what it takes from `schema.sql`."""
        return _FROM_SCHEMA.sub(lambda line: "\n".join(map(_in_schema, line[1].split())), self.sql).encode()

    def __str__(self) -> str:
        return f"{self.version:04d}_{self.name}"


class Migrated(NamedTuple):
    """The applied migrations, those that wait for the end of workers, and the granted roles."""

    applied: Sequence[Migration]
    waiting: Sequence[Migration] = ()
    workers: Sequence[str] = ()
    roles: Sequence[str] = ()


@cache
def migrations() -> tuple[Migration, ...]:
    """Return every migration this code knows, in order. The first one only has a number: it is part of `schema.sql`."""
    found = [
        Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in files("flujo_worker.store").joinpath("migrations").iterdir()
        if (match := _NAME.fullmatch(file.name))
    ]
    return (Migration(1, FIRST_MIGRATION, ""), *sorted(found))


def _schema() -> str:
    return files("flujo_worker.store").joinpath("schema.sql").read_text(encoding="utf-8")


def _in_schema(name: str) -> str:
    """Return the statements that make a table with its indexes, or a view or a function, new or anew."""
    of_table = rf"(?:CREATE TABLE {name} .*?^\)[^;]*|ALTER TABLE {name} .*?|CREATE (?:UNIQUE )?INDEX \w+ ON {name} .*?|INSERT INTO {name} .*?);$"
    if table := re.findall(rf"^{of_table}", _schema(), re.MULTILINE | re.DOTALL):
        return "\n".join(table)
    found = re.search(rf"^CREATE ((?:VIEW|FUNCTION) {name}\b.*?;)$\n(?:\n|\Z)", _schema(), re.MULTILINE | re.DOTALL)
    if found is None:
        raise KeyError(name)
    return f"CREATE OR REPLACE {found[1]}"


def needed() -> int:
    """Return the schema without which this code does not work: what waits for the end of older workers may be missing."""
    return max(each.version for each in migrations() if not each.after)


def migrate(
    url: str,
    *,
    ignore_workers: bool = False,
    roles: str | None = None,
    patience_s: float = LOCKS_S,
    on_wait: Callable[[str], None] = logger.warning,
) -> Migrated:
    """Migrate the database to this code's schema, as far as the live workers' code is compatible with it.

    Events that were restored into another server are put into order (ADR 29). All of it is one transaction under a transaction-level
    advisory lock: a second caller waits, and finds nothing to do. No statement waits for a lock for longer than a second, because all others
    would queue behind it: the whole is undone and tried again. New indexes follow, for which nobody else has to wait.

    Args:
        url: a libpq connection string.
        ignore_workers: also apply migrations that wait for the end of workers.
        roles: the prefix of the roles to create and to grant; None grants nothing.
        patience_s: seconds to try again while others hold the locks.
        on_wait: is called with a line for a person when locks are held, and when others hold them.

    Raises:
        ServiceUnreachable: Postgres does not answer, or does not accept writes.
        SchemaVersionError: the database is newer than this code, or workers that are alive are too old for it.
        StoreError: others held the locks all the time; names their sessions.
        SettingsError: the prefix cannot begin a role's name, or the URL's role lacks rights.
    """
    until, named, done = time.monotonic() + patience_s, None, None
    with _connected(url) as connection:
        while True:
            try:
                done = done or _migrate(connection, ignore_workers=ignore_workers, roles=roles)
                _build_indexes(connection, url, patience_s)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable) as error:
                holders = _lock_holders(connection)
                if holders.keys() != named:
                    on_wait(f"the migration waits for locks{_held_by(holders)}")
                    named = holders.keys()
                if time.monotonic() > until:
                    raise _locked(holders, patience_s) from error
            else:
                return done
            time.sleep(RETRY_EVERY_S * random.uniform(0.5, 1.5))  # noqa: S311 - as below


def _lock_holders(connection: Connection) -> dict[int, str]:
    """Return the sessions that hold locks on our tables, each in words, by the number of its process."""
    with psycopg.RawCursor(connection, row_factory=class_row(LockHolder)) as cursor:
        text, names = statement("lock_holders", CLIENT)
        given = {"lock": LOCK, "older_s": 0.0}
        return {each.pid: str(each) for each in cursor.execute(text, [given[name] for name in names])}


def _held_by(holders: Mapping[int, str]) -> str:
    return f" held by {', '.join(holders.values())}" if holders else ", whose holders have ended"


def _locked(holders: Mapping[int, str], patience_s: float) -> StoreError:
    return StoreError(
        f"the migration did not get, within {patience_s:g} s, locks{_held_by(holders)}",
        suggestion="end those transactions, such as by SELECT pg_terminate_backend(pid), and run `flujo migrate` again",
        code="LOCKED",
    )


def _migrate(connection: Connection, *, ignore_workers: bool, roles: str | None) -> Migrated:
    with connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '1s'")
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        connection.execute(_AS_OWNER, [True])
        connection.execute(_CREATE)
        done = _migrated(connection, ignore_workers=ignore_workers)
        connection.execute(statement("order_restored_events").text)
        return done if roles is None else done._replace(roles=grant_roles(connection, roles))


def _migrated(connection: Connection, *, ignore_workers: bool) -> Migrated:
    present = _present(connection)
    present.refuse_unless_known(migrations()[-1].version)
    if not present.version:
        return _create(connection)
    pending = [each for each in migrations() if each.version > present.version]
    for number, each in enumerate(pending):
        if each.after and not ignore_workers:
            workers = [str(row[0]) for row in connection.execute(_OLDER, [each.after])]
            if workers:
                return Migrated(pending[:number], _all_waiting(pending[number:], workers), workers)
        connection.execute(each.statements)
        _record(connection, each)
    return Migrated(pending)


def _create(connection: Connection) -> Migrated:
    connection.execute(_schema().encode())
    for each in migrations():
        _record(connection, each)
    return Migrated(migrations())


def _all_waiting(pending: Sequence[Migration], workers: Sequence[str]) -> Sequence[Migration]:
    """Return the rest if it can wait; what this code needs comes after it otherwise, and nothing is applied."""
    if any(not each.after for each in pending):
        raise SchemaVersionError(
            f"migration {pending[0]} needs code that knows schema {pending[0].after}, but older workers are alive: "
            + ", ".join(workers),
            suggestion="upgrade them to the release before this one first, or stop them; `flujo migrate --ignore-workers` breaks them",
        )
    return pending


def _record(connection: Connection, migration: Migration) -> None:
    row = [migration.version, migration.name, migration.after]
    connection.execute("INSERT INTO flujo_schema_version (version, name, oldest) VALUES (%s, %s, %s)", row)


def _build_indexes(connection: Connection, url: str, patience_s: float) -> None:
    """Build the indexes that migrations name, unless they are there or another process builds them.

    That waits for transactions that are under way; one that was broken off leaves an invalid index. The lock is another connection's: behind
    a pooler, too, it lasts for a transaction.
    """
    if not _missing_indexes(connection):
        return
    with psycopg.connect(url, **options(url)) as turn:
        turn.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        if turn.execute(_TRY_INDEX_LOCK).fetchone() != (True,):
            return
        if has_own_session(connection):
            connection.execute(_AS_OWNER, [False])
            connection.execute(f"SET lock_timeout = '{patience_s:g}s'; SET statement_timeout = 0".encode())
        for name, definition in _missing_indexes(connection).items():
            connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}".encode())
            connection.execute(f"CREATE INDEX CONCURRENTLY {definition}".encode())


def _missing_indexes(connection: Connection) -> dict[str, str]:
    """Return the definition of each, by its name."""
    version = _present(connection).version
    known = {name: text for each in migrations() if each.version <= version for text, name in _INDEX.findall(each.sql)}
    return {str(row[0]): known[str(row[0])] for row in connection.execute(_MISSING, [list(known)])}


def require_current(url: str, *, patience_s: float = 0.0) -> None:
    """Refuse a database that is older than this code, or so much newer that this code cannot work with it.

    Raises:
        SchemaVersionError: with what to do.
        ServiceUnreachable: Postgres does not answer, for `patience_s` seconds.
    """
    until, has_warned = time.monotonic() + patience_s, False
    while True:
        try:
            with _connected(url) as connection:
                return _present(connection).require(needed(), migrations()[-1].version)
        except ServiceUnreachable as error:
            if time.monotonic() > until:
                raise
            if not has_warned:
                logger.warning("%s; trying again for up to %g s", error.message, patience_s)
                has_warned = True
        time.sleep(RETRY_EVERY_S * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries, guards nothing


def _present(connection: Connection) -> SchemaVersion:
    if connection.execute("SELECT to_regclass('flujo_schema_version')").fetchone() == (None,):
        return SchemaVersion(0, 0, None)
    with connection.cursor(row_factory=class_row(SchemaVersion)) as cursor:
        return cursor.execute(statement("schema_version", CLIENT).text).fetchall()[0]


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Connect; if Postgres refuses for now, or libpq cannot read the URL, the error does not contain the password."""
    try:
        with psycopg.connect(url, **options(url), autocommit=True) as connection:
            yield connection
    except psycopg.errors.InsufficientPrivilege as error:
        raise SettingsError(
            f"the role of the database URL may not do this: {str(error).splitlines()[0]}",
            suggestion="use the URL of a role that is a member of the owner of Flujo's tables, and the first time of one that may create roles",
            cause=error,
        ) from error
    except psycopg.Error as error:
        if fate(error) == "ours" and error.sqlstate is not None:
            raise
        failure = unreachable(url, error)
        raise failure from failure.__cause__
