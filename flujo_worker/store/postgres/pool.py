"""A pool of connections that retries.

An operation that fails because Postgres is unavailable, read-only after a failover, or chose this statement to break a deadlock is retried
until it succeeds. So every operation must be safe to repeat. One that finds a row locked by somebody else for longer than a statement waits
raises `RowLocked`; in an attempt that may wait it is retried too, with few others at once, so that those who wait leave connections free.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool, PoolClosed

from flujo_client.contract.deployment import LockHolder
from flujo_client.transport import postgres
from flujo_worker.concurrency.call_context import may_wait_for_locks
from flujo_worker.errors import RowLocked, StoreError
from flujo_worker.store.postgres.statements import CLIENT, HOME, Connection, execute, statement

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
LONGEST_WAIT_S = 2.0
"""The maximum number of seconds until something that failed is tried again."""
IDLE_S = 60.0
"""Seconds after which connections that were not used are closed."""
YOUNGEST_S = 0.1
"""Seconds that a transaction has lasted that may be in the way: those of workers are shorter."""
HOLDERS_S = 1.0
"""Seconds for which the sessions that hold locks are remembered, so that concurrent waiters query once."""
_MESSAGES = {"away": "is not reachable, trying again", "again": "aborted a statement, trying again"}


class RetryingPool:
    """The worker's connections to Postgres.

    Args:
        url: a libpq connection string.
        pool_max: connections this process may hold; those that it does not use are closed.
        prepare: whether statements may be prepared, on connections with their own session.
        stopping: set when the process ends, so that nothing waits for Postgres any longer.

    Attributes:
        on_silence: called when a statement got no answer; what lost its connection has probably lost those outside of the pool as well.
    """

    def __init__(self, url: str, *, pool_max: int = 10, prepare: bool = True, stopping: Flag | None = None) -> None:
        self._url, self._stopping = url, stopping
        self.on_silence: Callable[[], object] = lambda: None
        self._waiters = threading.BoundedSemaphore(max(1, pool_max // 4))
        self._held_at, self._holders = float("-inf"), tuple[str, ...]()
        kwargs = postgres.options(url) | {
            "autocommit": True,
            "row_factory": dict_row,
            "cursor_factory": psycopg.RawCursor,
            "prepare_threshold": 0 if prepare else None,
        }
        self._pool: ConnectionPool[postgres.BoundedConnection[dict[str, Any]]] = ConnectionPool(
            url,
            connection_class=postgres.BoundedConnection,
            min_size=1,
            max_size=pool_max,
            kwargs=kwargs,
            configure=_plan_once if prepare else None,
            open=False,
            timeout=5,
            max_idle=IDLE_S,
            name="flujo",
            reconnect_timeout=RECONNECT_S,
            reconnect_failed=lambda pool: (
                pool.check()
            ),  # else callers that wait for a connection wait until their own timeout
        )

    def open(self) -> Self:
        """Open the pool; connections are made as they are needed."""
        self._pool.open(wait=False)
        return self

    def close(self) -> None:
        self._pool.close(timeout=2)

    def with_retry(self, act: Callable[[Connection], T], *, waits: bool = True) -> T:
        """Do one operation on a connection, retrying while Postgres is away; and, if the caller `waits` for locks, while a row is locked.

        Raises:
            RowLocked: it is locked, and the caller does not wait.
            StoreError: Postgres is away, and this process stops.
        """
        wait, answer_s, is_first, is_locked = 0.02, ANSWER_S, True, False
        while True:
            try:
                with self._waiters if is_locked else nullcontext():
                    return self._once(act, answer_s)
            except PoolClosed as error:
                raise StoreError("the store is closed", cause=error) from error
            except psycopg.Error as error:
                known, failure = postgres.fate(error), postgres.error_text(self._url, error)
                if known == "ours":
                    raise
                if self._stopping is not None and self._stopping.is_set():
                    raise StoreError(
                        f"Postgres is not reachable and this worker is stopping: {failure}", cause=error
                    ) from error
                if isinstance(error, postgres.AnswerOverdue):
                    answer_s *= 2
                    self._pool.drain()  # what lost one connection has probably lost the others
                    self.on_silence()
                if known == "locked":
                    self._require_waiting(error, waits=waits)
                    wait, is_locked = max(wait, postgres.LOCK_WAIT_S), True
                else:
                    logger.warning("postgres %s: %s", _MESSAGES[known], failure)
                if error.sqlstate == postgres.READ_ONLY and is_first:
                    self._pool.drain()  # all of them lead to the old primary; once, for there may be no other yet
                    is_first = False
            time.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311 - spreads retries, guards nothing
            if not is_locked:
                self._pool.check()
            wait = min(wait * 2, LONGEST_WAIT_S)

    def _require_waiting(self, error: psycopg.Error, *, waits: bool) -> None:
        if not (waits and may_wait_for_locks()):
            by = ", ".join(self.lock_holders()) or "a transaction that has ended"
            raise RowLocked(f"a row is locked by {by}", cause=error) from error

    def lock_holders(self) -> tuple[str, ...]:
        """Return the sessions whose transactions hold locks on our tables, in words; all who ask within a second ask Postgres once."""
        now = time.monotonic()
        if not self._holders or now - self._held_at > HOLDERS_S:
            self._held_at = now
            with suppress(psycopg.Error):
                given = {"lock": None, "older_s": YOUNGEST_S}
                found = self._once(lambda each: execute(each, "lock_holders", given, home=CLIENT).fetchall(), ANSWER_S)
                self._holders = tuple(str(LockHolder(**row)) for row in found)
            logger.warning("rows in Postgres are locked by %s", ", ".join(self._holders) or "others, who have ended")
        return self._holders

    def _once(self, act: Callable[[Connection], T], answer_s: float) -> T:
        connection = self._pool.getconn()  # not `connection()`: there is no transaction to end
        connection.answer_s = answer_s
        try:
            return act(connection)
        except psycopg.Error as error:
            if postgres.fate(error) == "away":
                connection.close()  # so that the next one finds a server that takes it
            raise
        finally:
            self._pool.putconn(connection)

    def rows(
        self, name: str, parameters: Mapping[str, Any], *, binary: bool = False, home: str = HOME
    ) -> list[dict[str, Any]]:
        """Execute a statement; return its rows."""
        return self.with_retry(
            lambda connection: execute(connection, name, parameters, binary=binary, home=home).fetchall()
        )

    def do(self, name: str, parameters: Mapping[str, Any], *, home: str = HOME) -> int:
        """Execute a statement; return how many rows it wrote."""
        return self.with_retry(lambda connection: execute(connection, name, parameters, home=home).rowcount)


class InPostgres:
    """A small store on the connections of a pool: `LeasesInPostgres` is the port `LeaseStore`, and so on."""

    def __init__(self, pool: RetryingPool) -> None:
        self._pool = pool


def _plan_once(connection: psycopg.Connection[Any]) -> None:
    """Each statement looks up rows by key, so one plan serves all; planning one again costs more than running it."""
    postgres.set_up_session(connection)
    if connection.prepare_threshold is not None:  # else the settings would hold for the next user of that session
        connection.execute(statement("connection_settings").text)
