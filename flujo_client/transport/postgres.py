"""Classify and report errors of Postgres: one table for the client and the worker.

In: an exception of psycopg, and the URL. Out: whether to wait, to try again, or to give up; and an error of ours without the password, even
if libpq quotes a URL that it could not read. It also detects whether a connection has its own session. It must not connect.
"""

from __future__ import annotations

import re
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import unquote

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import Row, scalar_row

from flujo_client.errors import ServiceUnreachable
from flujo_client.redact import mask_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from psycopg.abc import PQGen

T = TypeVar("T")

Fate = Literal["away", "again", "locked", "ours"]
"""`away`: no server accepts this now, wait for one. `again`: it conflicted with another statement, retry at once. `locked`: another transaction
holds what it needs for longer than a statement waits. `ours`: it is never accepted."""

LOCK_WAIT_S: Final = 0.5
"""The maximum number of seconds that a statement waits for a lock."""
IDLE_S: Final = 5.0
"""The maximum number of seconds that a transaction may be idle, such as that of a process that was stopped, before Postgres ends it."""

READ_ONLY: Final = "25006"
_FATES: Final[dict[str, Fate]] = {
    "08": "away",  # the connection failed
    READ_ONLY: "away",  # a standby, an old primary, or a disk that is nearly full
    "25P": "again",  # the transaction took longer than the server allows
    "28": "away",  # a password that is being changed
    "40": "again",  # a deadlock, or another transaction came first
    "53": "away",  # too many connections, no memory, a full disk
    "55000": "away",  # a recovery is in progress
    "55P03": "locked",
    "57014": "again",  # the statement was broken off
    "57P": "away",  # shut down, crashed, or starting
    "58": "away",  # the server cannot read or write its files
}
"""By SQLSTATE, its class, or its prefix. All others are our errors."""

_OPTIONS: Final = {
    "connect_timeout": 4,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""A host that disappears silently is noticed within about ten seconds; the system's own time-out is hours."""
ANSWER_S: Final = 30.0
"""Seconds. A proxy in between keeps a connection alive whose other end is gone: only the missing answer shows that."""
_READING: Final = (
    "SELECT set_config('statement_timeout', '{:.0f}', false), set_config('default_transaction_read_only', 'on', false),"
    " set_config('plan_cache_mode', 'force_custom_plan', false)"  # a plan for any filters is a bad one for most
)
_PROCESS: Final = "SELECT pg_backend_pid()"
_QUOTED = re.compile(r"""(["'])(.*?)\1""")


def fate(error: psycopg.Error) -> Fate:
    """Return what to do about an operation that failed with this."""
    state = error.sqlstate
    if state is None:  # libpq's own: the connection was lost, refused, or is closed
        return "away" if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) else "ours"
    return next((found for start, found in _FATES.items() if state.startswith(start)), "ours")


class AnswerOverdue(psycopg.OperationalError):
    """The server sent nothing for too long, and the connection was closed."""


def bounds(*, is_local: bool) -> str:
    """Return the statement that bounds waits for locks and idle transactions, for its transaction alone or for the session."""
    return (
        f"SELECT set_config('lock_timeout', '{LOCK_WAIT_S * 1000:.0f}', {is_local}),"
        f" set_config('idle_in_transaction_session_timeout', '{IDLE_S * 1000:.0f}', {is_local})"
    )


BOUNDS: Final = (
    f"SET LOCAL lock_timeout = {LOCK_WAIT_S * 1000:.0f}",
    f"SET LOCAL idle_in_transaction_session_timeout = {IDLE_S * 1000:.0f}",
)
"""The same as commands, for the beginning of a transaction that may still choose its isolation level."""


class BoundedConnection(psycopg.Connection[Row]):
    """A connection whose statements wait for locks only so long (`LOCK_WAIT_S`), and for an answer.

    It closes itself, and raises AnswerOverdue, when the server sends nothing for `answer_s` seconds of a statement. How long Postgres lets it
    wait for locks, or leave a transaction open, is set once in its own session (`set_up_session`). A pooler lends another session for each
    transaction, so each one sets it: together with a single statement in one round trip.
    """

    answer_s = ANSWER_S

    @contextmanager
    def transaction(self, *args: Any, **options: Any) -> Iterator[psycopg.Transaction]:
        with super().transaction(*args, **options) as begun:
            if self.prepare_threshold is None:
                for each in BOUNDS:
                    super().execute(each.encode())
            yield begun

    def execute(self, *args: Any, **options: Any) -> psycopg.Cursor[Row]:
        if self.prepare_threshold is not None or self.info.transaction_status != TransactionStatus.IDLE:
            return super().execute(*args, **options)
        with self.pipeline():
            super().execute(bounds(is_local=True).encode())
            return super().execute(*args, **options)

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        try:
            return super().wait(_bounded(gen, self.answer_s), *args, **options)
        except AnswerOverdue:
            self.close()
            raise


class AsyncBoundedConnection(psycopg.AsyncConnection[Row]):
    """The same for an event loop; what it sends without its own session has to be in a transaction."""

    answer_s = ANSWER_S

    @asynccontextmanager
    async def transaction(self, *args: Any, **options: Any) -> AsyncIterator[psycopg.AsyncTransaction]:
        async with super().transaction(*args, **options) as begun:
            if self.prepare_threshold is None:
                for each in BOUNDS:
                    await super().execute(each.encode())
            yield begun

    async def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        try:
            return await super().wait(_bounded(gen, self.answer_s), *args, **options)
        except AnswerOverdue:
            await self.close()
            raise


def _bounded(gen: PQGen[T], seconds: float) -> PQGen[T]:
    """Continue a generator of psycopg, which is also resumed when nothing came for a moment."""
    until = time.monotonic() + seconds
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready:
                until = time.monotonic() + seconds
            elif time.monotonic() > until:
                raise AnswerOverdue(f"no answer within {seconds:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        answer: T = end.value
        return answer


def lost(why: str) -> psycopg.Error:
    """Make the error of a connection that was lost."""
    return psycopg.OperationalError(why)


def options(url: str) -> dict[str, Any]:
    """Return the connection options that the URL leaves open."""
    return {name: value for name, value in _OPTIONS.items() if f"{name}=" not in url}


def has_own_session(connection: psycopg.Connection[Any]) -> bool:
    """Return whether prepared statements and settings stay on this connection, and only there.

    A pooler such as PgBouncer in transaction mode uses another session of Postgres for each transaction, and returns other process ids.
    """
    with connection.cursor(row_factory=scalar_row) as cursor:
        return bool(cursor.execute(_PROCESS, prepare=False).fetchone() == connection.info.backend_pid)


async def has_own_session_async(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Return the same for a connection of an event loop."""
    async with connection.cursor(row_factory=scalar_row) as cursor:
        await cursor.execute(_PROCESS, prepare=False)
        return bool(await cursor.fetchone() == connection.info.backend_pid)


def set_up_session(connection: psycopg.Connection[Any], *, reads_within_s: float | None = None) -> None:
    """Bound the waits of a connection with its own session; on any other one disable prepared statements.

    With `reads_within_s` its statements may only read, each for so many seconds.
    """
    if has_own_session(connection):
        connection.execute(bounds(is_local=False).encode())
        if reads_within_s is not None:
            connection.execute(_READING.format(reads_within_s * 1000).encode())
    else:
        connection.prepare_threshold = None


async def set_up_session_async(connection: psycopg.AsyncConnection[Any]) -> None:
    """Do the same for a connection of an event loop."""
    if await has_own_session_async(connection):
        await connection.execute(bounds(is_local=False).encode())
    else:
        connection.prepare_threshold = None


def unreachable(url: str, error: Exception) -> ServiceUnreachable:
    """Return the error for a server that did not answer. The cause is included where it shows nothing that is to be hidden."""
    if isinstance(error, psycopg.Error) and error.sqlstate == READ_ONLY:
        what = f"Postgres does not accept writes at {mask_url(url)}: {_first_line(error)}"
        way_out = "wait for the end of the failover; with several hosts in FLUJO_DATABASE_URL, add target_session_attrs=read-write"
        return ServiceUnreachable(what, suggestion=way_out, cause=error)
    text = error_text(url, error)
    what = f"Postgres does not answer at {mask_url(url)}: {text}"
    way_out = "check FLUJO_DATABASE_URL, or unset it and FLUJO_BROKER_URL to use embedded services"
    return ServiceUnreachable(what, suggestion=way_out, cause=error if text == _first_line(error) else None)


def error_text(url: str, error: Exception) -> str:
    """Return an error's first line, without what it quotes of the URL, unless it is in the masked one as well."""
    shown, known = unquote(mask_url(url)), (url, unquote(url))

    def hide(quoted: re.Match[str]) -> str:
        is_secret = quoted[2] not in shown and any(quoted[2] in each for each in known)
        return f"{quoted[1]}***{quoted[1]}" if is_secret else quoted[0]

    return _QUOTED.sub(hide, _first_line(error))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
