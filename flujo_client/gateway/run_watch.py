"""Wait until runs end or pause: one connection for each process and database, for all that wait there.

Workers notify when a run ends or pauses (ADR 28). A lost notification costs only the time until the rows are read again. Where none can
arrive, such as through PgBouncer in transaction mode, they are read often. All waits are read in one statement.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from flujo_client.gateway.requests import statement, statuses
from flujo_client.transport.postgres import BoundedConnection, has_own_session, options

logger = logging.getLogger(__name__)

CHANNEL: Final = "flujo_runs"
HEARD_POLL_S: Final = 2.0
"""Seconds between reads where notifications arrive: the delay that a lost one costs."""
FIRST_POLL_S, SLOWEST_POLL_S = 0.005, 0.25
"""Seconds between reads where none arrive; they grow after the last new wait."""
RETRY_S: Final = 0.25
ANSWER_S: Final = 5.0
"""Seconds without an answer after which the connection is replaced."""
LINGER_S: Final = 5.0
"""Seconds that the connection stays open after the last wait."""
_NAME: Final = "flujo-run-watch"
_OPTIONS: Final[dict[str, Any]] = {"autocommit": True, "prepare_threshold": None, "fallback_application_name": _NAME}


@dataclass(frozen=True, slots=True, eq=False)
class _Wait:
    run_id: str
    statuses: Collection[str]
    wake: Callable[[], object]


class RunWatch:
    """Wake callers that wait for runs of one database. Its thread and its connection live while a caller waits, and a little longer."""

    def __init__(self, url: str) -> None:
        self._url, self._lock = url, threading.Lock()
        self._waits: defaultdict[str, set[_Wait]] = defaultdict(set)
        self._unread: set[str] = set()
        self._thread: threading.Thread | None = None
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._wakeup_reader.settimeout(0)
        self._wakeup_writer.settimeout(0)

    @contextmanager
    def waiting(self, run_id: str, statuses: Collection[str], wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake`, from another thread, when the run ends or pauses, or if it has none of these statuses already."""
        wait = _Wait(run_id, statuses, wake)
        try:
            self._add(wait)
            yield
        finally:
            with self._lock:
                self._waits[run_id].discard(wait)
                if not self._waits[run_id]:
                    del self._waits[run_id]

    def _add(self, wait: _Wait) -> None:
        with self._lock:
            self._waits[wait.run_id].add(wait)
            self._unread.add(wait.run_id)
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name=_NAME, daemon=True)
                thread.start()
                self._thread = thread
        with suppress(BlockingIOError):  # the thread has enough to read
            self._wakeup_writer.send(b"\0")

    def _watch(self) -> None:
        while True:
            try:
                with BoundedConnection.connect(
                    self._url, row_factory=dict_row, **_OPTIONS, **options(self._url)
                ) as connection:
                    connection.answer_s = ANSWER_S
                    self._serve(connection)
            except psycopg.Error as error:
                logger.info("waiting for Postgres: %s", type(error).__name__)
                time.sleep(RETRY_S)
            except Exception:
                logger.exception("waiting for runs failed")
                time.sleep(RETRY_S)
            with self._lock:
                if not self._waits:
                    self._thread = None
                    return

    def _serve(self, connection: psycopg.Connection[dict[str, Any]]) -> None:
        """Wake waiting callers, until none has waited for a while."""
        hears = _listens(connection)
        connection.add_notify_handler(lambda heard: self._wake([heard.payload]))  # those with a response
        pause, needed_at, read_at = FIRST_POLL_S, time.monotonic(), float("-inf")
        with selectors.DefaultSelector() as ready:
            ready.register(connection, selectors.EVENT_READ)
            ready.register(self._wakeup_reader, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                if self._waits:
                    needed_at = now
                elif now - needed_at >= LINGER_S:
                    return
                is_due = now - read_at >= pause
                if runs := self._take(all_of_them=is_due):
                    self._read(connection, runs)
                if is_due:
                    read_at, pause = now, HEARD_POLL_S if hears else min(pause * 1.5, SLOWEST_POLL_S)
                elif runs and not hears:
                    pause = FIRST_POLL_S
                ready.select(max(0.0, min(read_at + pause, needed_at + LINGER_S) - time.monotonic()))
                with suppress(BlockingIOError):
                    self._wakeup_reader.recv(4096)
                self._hear(connection)

    def _take(self, *, all_of_them: bool) -> list[str]:
        """Return the runs to be read: the new ones, or all."""
        with self._lock:
            unread, self._unread = self._unread, set()
            return [run for run in (self._waits if all_of_them else unread) if run in self._waits]

    def _read(self, connection: psycopg.Connection[dict[str, Any]], runs: list[str]) -> None:
        request = statuses(runs)
        found = request.read(connection.execute(statement(request.name), request.parameters).fetchall())
        self._wake(runs, found)

    def _hear(self, connection: psycopg.Connection[dict[str, Any]]) -> None:
        """Wake callers for the notifications that arrived; raises OperationalError if the connection is lost."""
        connection.pgconn.consume_input()
        while (heard := connection.pgconn.notifies()) is not None:
            self._wake([heard.extra.decode(errors="replace")])

    def _wake(self, runs: Iterable[str], found: dict[str, str] | None = None) -> None:
        """Wake the callers that wait for these runs; with statuses, only those whose wait is over."""
        with self._lock:
            waits = [wait for run in runs for wait in self._waits.get(run, ())]
        for wait in waits:
            if found is None or found.get(wait.run_id) not in wait.statuses:
                wait.wake()


def _listens(connection: psycopg.Connection[dict[str, Any]]) -> bool:
    """Listen, and return whether notifications can arrive: not through a pooler, which gives each transaction another server."""
    if not has_own_session(connection):
        return False
    try:
        connection.execute(f"LISTEN {CHANNEL}".encode())
    except psycopg.DatabaseError as error:  # a standby accepts no LISTEN
        if connection.broken:
            raise
        logger.info("waiting for runs without notifications: %s", error)
        return False
    return True


_watches: dict[str, RunWatch] = {}


def watch_of(url: str) -> RunWatch:
    return _watches.get(url) or _watches.setdefault(url, RunWatch(url))


os.register_at_fork(after_in_child=_watches.clear)
