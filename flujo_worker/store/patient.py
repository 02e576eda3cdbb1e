"""A pool of connections that is patient.

What fails because Postgres is away, was restarted, or chose this statement to break a deadlock is tried again until it answers.
So every act must be one that may be said twice.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from flujo_worker.errors import StoreError
from flujo_worker.store.statements import execute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from threading import Event as Flag
    from typing import Self

logger = logging.getLogger(__name__)

T = TypeVar("T")

_AWAY = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout)


class Patient:
    """The worker's connections to Postgres.

    Args:
        url: a libpq connection string.
        pool_max: connections this process may hold.
        prepare: whether statements may be prepared; off for PgBouncer before 1.21 in transaction mode.
        stopping: set when the process is going down, so that nobody waits for Postgres any longer.
    """

    def __init__(self, url: str, *, pool_max: int = 10, prepare: bool = True, stopping: Flag | None = None) -> None:
        self._stopping = stopping
        kwargs = {
            "autocommit": True,
            "row_factory": dict_row,
            "cursor_factory": psycopg.RawCursor,
            "prepare_threshold": 0 if prepare else None,
        }
        self._pool: ConnectionPool[psycopg.Connection[dict[str, Any]]] = ConnectionPool(
            url,
            min_size=1,
            max_size=pool_max,
            kwargs=kwargs,
            configure=_plan_once if prepare else None,
            open=False,
            timeout=5,
            name="flujo",
            reconnect_timeout=2,
        )

    def open(self) -> Self:
        """Open the pool; connections are made as they are needed."""
        self._pool.open(wait=False)
        return self

    def close(self) -> None:
        """Close every connection."""
        self._pool.close(timeout=2)

    def _patiently(self, act: Callable[[psycopg.Connection[dict[str, Any]]], T]) -> T:
        """Do one act on a connection, again and again while Postgres is away."""
        wait = 0.02
        while True:
            try:
                connection = self._pool.getconn()  # not `connection()`: there is no transaction to end
                try:
                    return act(connection)
                finally:
                    self._pool.putconn(connection)
            except _AWAY as error:
                if self._stopping is not None and self._stopping.is_set():
                    raise StoreError(f"Postgres is away and this worker is stopping: {error}", cause=error) from error
                logger.warning("postgres is away, trying again: %s", str(error).strip().splitlines()[:1])
            except PoolClosed as error:
                raise StoreError("the store is closed", cause=error) from error
            time.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries, guards nothing
            self._pool.check()
            wait = min(wait * 2, 1.0)

    def _rows(self, name: str, parameters: Mapping[str, Any], *, binary: bool = False) -> list[dict[str, Any]]:
        return self._patiently(lambda connection: execute(connection, name, parameters, binary=binary).fetchall())

    def _do(self, name: str, parameters: Mapping[str, Any]) -> int:
        return self._patiently(lambda connection: execute(connection, name, parameters).rowcount)


def _plan_once(connection: psycopg.Connection[Any]) -> None:
    """Each statement looks up rows by key, so one plan serves all; planning one anew costs more than running it."""
    connection.execute("SET plan_cache_mode = force_generic_plan")
