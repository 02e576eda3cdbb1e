"""Find the psycopg connection below a caller's `connection`: a SQLAlchemy session or connection, or Django's.

None of these libraries is imported: they are recognised by the modules of their classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from flujo_client.errors import ClientError, SchemaVersionError

_SESSIONS = {"Session", "scoped_session", "AsyncSession", "async_scoped_session"}
_CONNECTIONS = {"Connection", "AsyncConnection"}
_SYNC = "a psycopg Connection, a SQLAlchemy Session or Connection, or Django's connection"
_ASYNC = "a psycopg AsyncConnection, or a SQLAlchemy AsyncSession or AsyncConnection"


def sync_connection(given: Any) -> psycopg.Connection[Any]:
    """Return the psycopg connection of a caller's transaction.

    Args:
        given: a psycopg `Connection`; a SQLAlchemy `Session`, `scoped_session` or `Connection`; or Django's `connection`.

    Raises:
        ClientError: it is anything else, asynchronous, or uses another driver; the message names what to pass.
    """
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
    raise _refused(given, found, _SYNC)


async def async_connection(given: Any) -> psycopg.AsyncConnection[Any]:
    """Return the psycopg connection of a caller's transaction.

    Args:
        given: a psycopg `AsyncConnection`; or a SQLAlchemy `AsyncSession`, `async_scoped_session` or `AsyncConnection`.

    Raises:
        ClientError: it is anything else, not asynchronous, or uses another driver; the message names what to pass.
    """
    if isinstance(given, psycopg.AsyncConnection):
        return given
    kind, found = _kind(given), given
    if kind in {"session", "connection"} and _is_async(given):
        found = await found.connection() if kind == "session" else found
        if not found.in_transaction():
            await found.begin()
        found = (await found.get_raw_connection()).driver_connection
    if isinstance(found, psycopg.AsyncConnection):
        return found
    raise _refused(given, found, _ASYNC)


@contextmanager
def flujo_tables_expected() -> Iterator[None]:
    """Raise SchemaVersionError if a statement in the caller's transaction finds no tables of Flujo Worker."""
    try:
        yield
    except psycopg.errors.UndefinedTable as error:
        raise SchemaVersionError(
            "`connection` is to a database without flujo tables",
            suggestion="connect to the database that `flujo migrate` prepared, with a search_path that includes them",
            cause=error,
        ) from error


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
    if found is not given and not isinstance(found, psycopg.Connection | psycopg.AsyncConnection):
        driver = type(found).__module__.partition(".")[0]
        return ClientError(
            f"`connection` is {_named(given)} that uses the driver {driver}; only psycopg 3 can share its transaction",
            suggestion="SQLAlchemy: create_engine('postgresql+psycopg://…'); Django: install psycopg instead of psycopg2",
        )
    other = "AsyncFlujoClient" if wanted == _SYNC else "FlujoClient"
    fits_other = isinstance(found, psycopg.Connection | psycopg.AsyncConnection) or _kind(given) is not None
    return ClientError(
        f"`connection` must be {wanted}, got {_named(given)}",
        suggestion=f"pass it to {other}.enqueue"
        if fits_other
        else "pass the object that has the open transaction, such as a session",
    )


def _named(given: Any) -> str:
    library = type(given).__module__.partition(".")[0]
    name = type(given).__name__
    words = name if library == "builtins" else f"{library} {name}"
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"
