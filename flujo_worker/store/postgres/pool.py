"""A pool of connections that retries.

An operation that fails because Postgres is unavailable, read-only after a failover, or chose this statement to break a deadlock is retried
until it succeeds. So every operation must be safe to repeat.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool, PoolClosed

from flujo_client.transport.postgres import (
    READ_ONLY,
    AnswerOverdue,
    BoundedConnection,
    error_text,
    fate,
    options,
    prepare_in_own_session,
)
from flujo_worker.errors import StoreError
from flujo_worker.store.postgres.statements import HOME, execute, statement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from threading import Event as Flag
    from typing import Self

logger = logging.getLogger(__name__)

T = TypeVar("T")

RECONNECT_S = 2.0
"""Seconds after which the pool gives up connecting. It then starts over, with a short pause between attempts."""
ANSWER_S = 5.0
"""Seconds that Postgres may send nothing at the first try; twice as many at each next one, so that a slow statement ends at last."""
_MESSAGES = {"away": "is not reachable, trying again", "again": "aborted a statement, trying again"}


class RetryingPool:
    """The worker's connections to Postgres.

    Args:
        url: a libpq connection string.
        pool_max: connections this process may hold.
        prepare: whether statements may be prepared, on connections with their own session.
        stopping: set when the process ends, so that nothing waits for Postgres any longer.
    """

    def __init__(self, url: str, *, pool_max: int = 10, prepare: bool = True, stopping: Flag | None = None) -> None:
        self._url, self._stopping = url, stopping
        kwargs = options(url) | {
            "autocommit": True,
            "row_factory": dict_row,
            "cursor_factory": psycopg.RawCursor,
            "prepare_threshold": 0 if prepare else None,
        }
        self._pool: ConnectionPool[BoundedConnection[dict[str, Any]]] = ConnectionPool(
            url,
            connection_class=BoundedConnection,
            min_size=1,
            max_size=pool_max,
            kwargs=kwargs,
            configure=_plan_once if prepare else None,
            open=False,
            timeout=5,
            name="flujo",
            reconnect_timeout=RECONNECT_S,
            reconnect_failed=_connect_again,
        )

    def open(self) -> Self:
        """Open the pool; connections are made as they are needed."""
        self._pool.open(wait=False)
        return self

    def close(self) -> None:
        """Close every connection."""
        self._pool.close(timeout=2)

    def _with_retry(self, act: Callable[[psycopg.Connection[dict[str, Any]]], T]) -> T:
        """Do one operation on a connection, retrying while Postgres is away."""
        wait, answer_s, is_first = 0.02, ANSWER_S, True
        while True:
            try:
                return self._once(act, answer_s)
            except PoolClosed as error:
                raise StoreError("the store is closed", cause=error) from error
            except psycopg.Error as error:
                known, failure = fate(error), error_text(self._url, error)
                if known == "ours":
                    raise
                if self._stopping is not None and self._stopping.is_set():
                    raise StoreError(
                        f"Postgres is not reachable and this worker is stopping: {failure}", cause=error
                    ) from error
                if isinstance(error, AnswerOverdue):
                    answer_s *= 2
                    self._pool.drain()  # what lost one connection has probably lost the others
                logger.warning("postgres %s: %s", _MESSAGES[known], failure)
                if error.sqlstate == READ_ONLY and is_first:
                    self._pool.drain()  # all of them lead to the old primary; once, for there may be no other yet
                    is_first = False
            time.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries, guards nothing
            self._pool.check()
            wait = min(wait * 2, 1.0)

    def _once(self, act: Callable[[psycopg.Connection[dict[str, Any]]], T], answer_s: float) -> T:
        connection = self._pool.getconn()  # not `connection()`: there is no transaction to end
        connection.answer_s = answer_s
        try:
            return act(connection)
        except psycopg.Error as error:
            if fate(error) == "away":
                connection.close()  # so that the next one finds a server that takes it
            raise
        finally:
            self._pool.putconn(connection)

    def _rows(self, name: str, parameters: Mapping[str, Any], *, binary: bool = False) -> list[dict[str, Any]]:
        return self._with_retry(lambda connection: execute(connection, name, parameters, binary=binary).fetchall())

    def _do(self, name: str, parameters: Mapping[str, Any], *, home: str = HOME) -> int:
        return self._with_retry(lambda connection: execute(connection, name, parameters, home=home).rowcount)


def _connect_again(pool: ConnectionPool[BoundedConnection[dict[str, Any]]]) -> None:
    """Start connecting again: callers that wait for a connection would otherwise wait until their own timeout."""
    pool.check()


def _plan_once(connection: psycopg.Connection[Any]) -> None:
    """Each statement looks up rows by key, so one plan serves all; planning one again costs more than running it."""
    prepare_in_own_session(connection)
    if connection.prepare_threshold is not None:  # else the settings would hold for the next user of that session
        connection.execute(statement("connection_settings").text)
