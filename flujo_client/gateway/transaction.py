"""Find the driver's connection below a caller's `connection`: a SQLAlchemy session or connection, or Django's.

None of these libraries is imported: they are recognised by the modules of their classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from flujo_client.errors import ClientError, SchemaVersionError
from flujo_client.gateway.other_drivers import AsyncpgConnection, Psycopg2Connection

_SESSIONS = {"Session", "scoped_session", "AsyncSession", "async_scoped_session"}
_CONNECTIONS = {"Connection", "AsyncConnection"}
_SYNC = "a connection of psycopg or psycopg2, a SQLAlchemy Session or Connection, or Django's connection"
_ASYNC = "a psycopg AsyncConnection, an asyncpg Connection, or a SQLAlchemy AsyncSession or AsyncConnection"
_DRIVERS = ("psycopg", "psycopg2", "asyncpg")
_UNDEFINED_TABLE = "42P01"


def sync_connection(given: Any) -> psycopg.Connection[Any] | Psycopg2Connection:
    """Return the driver's connection of a caller's transaction; raises ClientError, which names what to pass, for anything but `_SYNC`."""
    if isinstance(given, psycopg.Connection):
        return given
    kind, found = _kind(given), given
    if kind == "django":
        found.ensure_connection()
        found = found.connection
    elif kind in {"session", "connection"} and not _is_async(given):
        found = found.connection() if kind == "session" else found
        if not found.in_transaction():
            found.begin()  # or SQLAlchemy would not know that there is something to commit
        found = found.connection.driver_connection
    if isinstance(found, psycopg.Connection):
        return found
    if ("connection", "psycopg2") in _classes(found):
        return Psycopg2Connection(found)
    raise _refused(given, found, _SYNC)


async def async_connection(given: Any) -> psycopg.AsyncConnection[Any] | AsyncpgConnection:
    """Return the driver's connection of a caller's transaction; raises ClientError, which names what to pass, for anything but `_ASYNC`."""
    if isinstance(given, psycopg.AsyncConnection):
        return given
    kind, found = _kind(given), given
    if kind in {"session", "connection"} and _is_async(given):
        found = await found.connection() if kind == "session" else found
        if not found.in_transaction():
            await found.begin()
        if found.dialect.driver == "asyncpg":
            await found.exec_driver_sql("SELECT")  # SQLAlchemy begins asyncpg's transaction with the first statement
        found = (await found.get_raw_connection()).driver_connection
    if isinstance(found, psycopg.AsyncConnection):
        return found
    if not {("Connection", "asyncpg"), ("PoolConnectionProxy", "asyncpg")}.isdisjoint(_classes(found)):
        return AsyncpgConnection(found)
    raise _refused(given, found, _ASYNC)


def publish_on_commit(given: Any, publish: Callable[[], None]) -> None:
    """Publish as soon as the transaction of Django's `connection` is committed; for any other connection do nothing."""
    if _kind(given) == "django":
        given.on_commit(publish)


@contextmanager
def flujo_tables_expected() -> Iterator[None]:
    """Raise SchemaVersionError if a statement in the caller's transaction finds no tables of Flujo Worker."""
    try:
        yield
    except Exception as error:
        if getattr(error, "sqlstate", getattr(error, "pgcode", None)) != _UNDEFINED_TABLE:
            raise
        what = "`connection` is to a database without flujo tables"
        way_out = "connect to the database that `flujo migrate` prepared, with a search_path that includes them"
        raise SchemaVersionError(what, suggestion=way_out, cause=error) from error


def _kind(given: Any) -> str | None:
    """Return django, session or connection; None for anything else."""
    classes = list(_classes(given))
    if any(library == "django" for _, library in classes) and hasattr(given, "ensure_connection"):
        return "django"
    of_sqlalchemy = {name for name, library in classes if library == "sqlalchemy"}
    return "session" if of_sqlalchemy & _SESSIONS else "connection" if of_sqlalchemy & _CONNECTIONS else None


def _classes(given: Any) -> Iterator[tuple[str, str]]:
    """Yield the classes of a value, and the library that each is from; of a proxy those of its target."""
    for each in (type(given), given.__class__):
        for base in inspect.getmro(each):
            yield base.__name__, base.__module__.partition(".")[0]


def _is_async(given: Any) -> bool:
    return any("async" in name.lower() for name, _ in _classes(given))


def _refused(given: Any, found: Any, wanted: str) -> ClientError:
    driver = type(found).__module__.partition(".")[0]
    if found is not given and driver not in _DRIVERS:
        what = f"`connection` is {_named(given)} that uses the driver {driver}; only {', '.join(_DRIVERS)} can share a transaction"
        way_out = "use one of these drivers; or enqueue after your commit, where a crash in between loses the run"
        return ClientError(what, suggestion=way_out)
    way_out = "pass the object that has the open transaction, such as a session"
    if driver in _DRIVERS or _kind(given) is not None:
        way_out = f"pass it to {'AsyncFlujoClient' if wanted == _SYNC else 'FlujoClient'}.enqueue"
    return ClientError(f"`connection` must be {wanted}, got {_named(given)}", suggestion=way_out)


def _named(given: Any) -> str:
    library = type(given).__module__.partition(".")[0]
    name = type(given).__name__
    words = name if library == "builtins" else f"{library} {name}"
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"
