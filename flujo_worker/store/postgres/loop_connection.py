"""A connection to Postgres that lives on the event loop: the loop watches libpq's socket, and no thread waits for an answer.

It connects in the background, and again whenever it was lost; meanwhile it takes nothing. In: statements with their parameters. Out: their
rows, or an error. It must not repeat anything: a statement may have been executed before the connection was lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from flujo_client.transport import postgres
from flujo_worker.store.postgres.binary import encoder
from flujo_worker.store.postgres.statements import statement, types

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from psycopg.pq.abc import PGconn, PGresult

    Row: TypeAlias = tuple[bytes | None, ...]
    Call: TypeAlias = tuple[str, Mapping[str, Any]]
    Rows: TypeAlias = list[list[Row]]
    Answered: TypeAlias = Callable[[Rows | psycopg.Error, Rows], None]

logger = logging.getLogger(__name__)

FIRST_WAIT_S: Final = 0.05
LONGEST_WAIT_S: Final = 2.0
ANSWER_S: Final = 5.0
"""The approximate timeout of an answer in seconds. It doubles after each timeout, so that a slow server is not flooded."""
NEW_S: Final = 1.0
"""Seconds during which a request is too new to be doubted because another connection got no answer."""


class LoopConnection:
    """Executes statements of `sql/` on a separate connection, one transaction at a time.

    Args:
        url: a libpq connection string.
        names: of the statements that it executes.
        prepare: whether statements may be prepared, if the connection has its own session. Otherwise each is planned again, with the
            present numbers of rows.
        settings: the statement that configures the connection, if it has its own session.
    """

    def __init__(self, url: str, names: Sequence[str], *, prepare: bool, settings: str = "group_settings") -> None:
        self._url, self._names, self._may_prepare, self._settings = url, names, prepare, settings
        self._parameters, self._wait_s = {name: _parameters(name) for name in names}, FIRST_WAIT_S
        self._connecting: asyncio.Task[None] | None = None
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._answered: Answered | None = None
        self._rows: Rows = []
        self._error: psycopg.Error | None = None
        self._ended: list[Rows | psycopg.Error] = []
        self._transactions = 1
        self._answer_s = ANSWER_S
        self.is_ready = self._prepares = False

    def open(self) -> None:
        """Begin to connect, on the loop that this is called on, unless it has begun."""
        if self._connecting is None:
            self._loop, self._lost = asyncio.get_running_loop(), asyncio.Event()
            self._connecting = self._loop.create_task(self._stay_connected())

    def doubt(self) -> None:
        """Connect again: another connection got no answer, so this one is probably lost too. Safe for any thread."""
        if self._connecting is not None:
            self._loop.call_soon_threadsafe(self._renew)

    def _renew(self) -> None:
        """Drop the connection, unless its answer may still come in time."""
        if self.is_ready and (self._answered is None or time.monotonic() - self._asked_at > NEW_S):
            self._drop(postgres.AnswerOverdue("no answer on another connection"))

    async def close(self) -> None:
        """Drop the connection. Requests under way fail."""
        if self._connecting is not None:
            self._connecting.cancel()
            with suppress(asyncio.CancelledError):
                await self._connecting
        self._drop(psycopg.OperationalError("the connection was closed"))

    def execute(self, calls: Sequence[Call], answered: Answered, after: Sequence[Call] = ()) -> None:
        """Send statements in one round trip, and call `answered` with the rows of each, as text, or an error; and with the rows of `after`.

        They are one transaction, in which each sees what the ones before it wrote. `after` is another one, which begins when the first is
        committed; if that one fails, it has no rows. The next statements may be sent when this is answered.
        """
        if not self.is_ready:
            raise psycopg.OperationalError("there is no connection")
        transactions = [[(name, self._bind(name, given)) for name, given in each] for each in (calls, after) if each]
        try:
            for number, bound in enumerate(transactions):
                if number:
                    self._pgconn.pipeline_sync()
                if not self._prepares:
                    self._pgconn.send_query_params(postgres.bounds(is_local=True).encode(), None)
                for name, values in bound:
                    self._send_statement(name, values)
            self._send(answered, len(transactions))
        except psycopg.Error as error:
            self._answered = None
            self._drop(error)
            raise

    def _bind(self, name: str, parameters: Mapping[str, Any]) -> list[bytes | None]:
        return [write(parameters[each]) for each, write in self._parameters[name]]

    def _send_statement(self, name: str, values: list[bytes | None]) -> None:
        formats = [pq.Format.BINARY] * len(values)
        if self._prepares:
            self._pgconn.send_query_prepared(name.encode(), values, formats)
        else:
            self._pgconn.send_query_params(statement(name).text, values, param_formats=formats)

    async def _stay_connected(self) -> None:
        while True:
            self._lost.clear()
            try:
                await self._connect()
                await self._keep()
            except psycopg.Error as error:
                self._refused(error)
            await asyncio.sleep(self._wait_s * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries, guards nothing
            self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)

    async def _keep(self) -> None:
        """Wait until the connection is lost; raise if an answer is overdue."""
        while not self._lost.is_set():
            if self._answered is not None and time.monotonic() - self._asked_at > self._answer_s:
                error = postgres.AnswerOverdue(f"no answer within {self._answer_s:g} s")
                self._answer_s *= 2
                raise error
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), ANSWER_S / 4)

    async def _connect(self) -> None:
        options = postgres.options(self._url)
        connection = await postgres.AsyncBoundedConnection.connect(self._url, autocommit=True, **options)
        self._prepares = self._may_prepare and await postgres.has_own_session_async(connection)
        self._connection = connection
        pgconn = self._pgconn
        pgconn.enter_pipeline_mode()
        self._socket = pgconn.socket  # libpq forgets it when the connection is lost, and the loop must unregister it
        self._loop.add_reader(self._socket, self._readable)
        if self._prepares:
            pgconn.send_query_params(postgres.bounds(is_local=False).encode(), None)
            pgconn.send_query_params(statement(self._settings).text, None)
            for name in self._names:
                pgconn.send_prepare(name.encode(), statement(name).text)
        self._send(self._begin)

    def _begin(self, answer: Rows | psycopg.Error, _: Rows) -> None:
        if isinstance(answer, psycopg.Error):
            self._refused(answer)
        else:
            self.is_ready = True

    def _refused(self, error: psycopg.Error) -> None:
        logger.warning("Postgres does not accept groups of statements: %s", postgres.error_text(self._url, error))
        self._drop(error)

    @property
    def _pgconn(self) -> PGconn:
        if self._connection is None:
            raise psycopg.OperationalError("there is no connection")
        return self._connection.pgconn

    def _send(self, answered: Answered, transactions: int = 1) -> None:
        """End a pipeline of that many transactions."""
        self._answered, self._rows, self._error, self._asked_at = answered, [], None, time.monotonic()
        self._ended, self._transactions = [], transactions
        self._pgconn.pipeline_sync()
        self._flush()

    def _flush(self) -> None:
        if self._pgconn.flush():
            self._loop.add_writer(self._socket, self._writable)

    def _writable(self) -> None:
        self._loop.remove_writer(self._socket)
        try:
            self._flush()
        except psycopg.Error as error:
            self._drop(error)

    def _readable(self) -> None:
        pgconn = self._pgconn
        try:
            pgconn.consume_input()
            while self._answered is not None and not pgconn.is_busy():
                self._read(pgconn.get_result())
        except psycopg.Error as error:
            self._drop(self._error or error)

    def _read(self, result: PGresult | None) -> None:
        if result is None:  # between two statements
            if self._pgconn.status != pq.ConnStatus.OK:
                raise psycopg.OperationalError("the connection was lost")
        elif result.status == pq.ExecStatus.PIPELINE_SYNC:
            self._ended.append(self._error or (self._rows if self._prepares else self._rows[1:]))
            self._rows, self._error = [], None
            if len(self._ended) == self._transactions:
                self._answer()
        elif result.status == pq.ExecStatus.FATAL_ERROR:
            self._error = self._error or error_from_result(result)
        else:
            columns = range(result.nfields)
            rows = range(result.ntuples)
            self._rows.append([tuple(result.get_value(row, each) for each in columns) for row in rows])

    def _answer(self) -> None:
        first, *more = self._ended
        # A standby, or a server that shuts down: look for another one.
        if isinstance(first, psycopg.Error) and postgres.fate(first) == "away":
            self._drop(first)
            return
        answered, self._answered = self._answered, None
        if self.is_ready:
            self._wait_s, self._answer_s = FIRST_WAIT_S, ANSWER_S
        if answered is not None:
            answered(first, next((each for each in more if not isinstance(each, psycopg.Error)), []))

    def _drop(self, error: psycopg.Error) -> None:
        """Close the connection; callers that wait for an answer get this error."""
        self.is_ready = False
        connection, self._connection = self._connection, None
        if connection is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            connection.pgconn.finish()
            self._lost.set()
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(error, [])


def _parameters(name: str) -> list[tuple[str, Callable[[Any], bytes | None]]]:
    """Return the parameters of a statement in their order, each with its encoder."""
    types_of = types(name)
    return [(each, encoder(types_of[each])) for each in statement(name).names]
