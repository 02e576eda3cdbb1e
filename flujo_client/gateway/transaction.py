"""Find the driver's connection below a caller's `connection`: a SQLAlchemy session or connection, or Django's.

None of these libraries is imported: they are recognised by the modules of their classes. Connections of psycopg2 and asyncpg get the part of
psycopg 3's interface that the runners use.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, Self

import psycopg

from flujo_client.errors import ClientError, SchemaVersionError

_SESSIONS = {"Session", "scoped_session", "AsyncSession", "async_scoped_session"}
_CONNECTIONS = {"Connection", "AsyncConnection"}
_SYNC = "a connection of psycopg or psycopg2, a SQLAlchemy Session or Connection, or Django's connection"
_ASYNC = "a psycopg AsyncConnection, an asyncpg Connection, or a SQLAlchemy AsyncSession or AsyncConnection"
_DRIVERS = ("psycopg", "psycopg2", "asyncpg")
_UNDEFINED_TABLE = "42P01"
_PARAMETER: Final = re.compile(r"%\((\w+)\)[sb](::jsonb)?")
_SAVEPOINT: Final = (b"SAVEPOINT flujo", b"ROLLBACK TO flujo; RELEASE flujo", b"RELEASE flujo")


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
        raise SchemaVersionError(what, suggestion=way_out) from error


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


class _Borrowed:
    """A connection of another driver. It stands for its cursors, and sends each statement by itself."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def cursor(self, **_: object) -> Self:
        return self

    def pipeline(self) -> nullcontext[None]:
        return nullcontext()


class Psycopg2Connection(_Borrowed):
    """A connection of psycopg2. Our cursors return mappings, whatever the caller's return."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        begins = self._connection.autocommit and not self._connection.info.transaction_status
        begin, undo, end = (b"BEGIN", b"ROLLBACK", b"COMMIT") if begins else _SAVEPOINT
        self.execute(begin)
        try:
            yield
        except BaseException:
            self.execute(undo)
            raise
        self.execute(end)

    def execute(self, sql: bytes, parameters: Mapping[str, Any] | None = None) -> Any:
        from psycopg2.extras import RealDictCursor

        cursor = self._connection.cursor(cursor_factory=RealDictCursor)
        if sql:  # psycopg2 begins transactions on its own, and refuses an empty statement
            cursor.execute(_PARAMETER.sub(r"%(\1)s\2", sql.decode()), parameters)
        return cursor


class AsyncpgConnection(_Borrowed):
    """A connection of asyncpg, and the rows of its last statement."""

    description: Final = ()

    def __init__(self, connection: Any, rows: Sequence[Any] = ()) -> None:
        super().__init__(connection)
        self._rows = rows

    def transaction(self) -> Any:
        return self._connection.transaction()

    async def execute(self, sql: bytes, parameters: Mapping[str, Any] | None = None) -> Self:
        names: list[str] = []

        def place(found: re.Match[str]) -> str:
            names.append(found[1])
            return f"${len(names)}" + ("::text::jsonb" if found[2] else "")  # a caller's codec would encode JSON twice

        text = _PARAMETER.sub(place, (sql or b"").decode()).replace("%%", "%")
        values = [parameters[name] for name in names] if parameters else []
        return type(self)(self._connection, await self._connection.fetch(text, *values))

    async def fetchall(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._rows]
