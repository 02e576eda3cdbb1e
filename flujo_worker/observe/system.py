"""Record a worker's events outside its attempts, without a run: buffered in a queue that never blocks, written in batches.

The queue is bounded, because Postgres may be unavailable for any time; dropped events are counted, and the count is an event too. The warnings
of our own loggers are events too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from flujo_client.contract.outcome import Event
from flujo_client.redact import redact
from flujo_worker.concurrency.recurring import RecurringWork
from flujo_worker.errors import StoreError
from flujo_worker.observe import log
from flujo_worker.ports import RecordStore

logger = logging.getLogger(__name__)

MOST_WAITING = 10_000
BATCH = 1_000
EVERY_S = 1.0
DROPPED = "events.dropped"
_OURS = "flujo_worker"


class SystemEvents(logging.Handler):
    """Takes a process's events, and writes them from its own thread; each names the present incarnation."""

    def __init__(self, records: RecordStore, worker: Callable[[], str], *, most: int = MOST_WAITING) -> None:
        super().__init__(logging.WARNING)
        self._records, self._worker, self._most = records, worker, most
        self._waiting: deque[Event] = deque()
        self._dropped = 0
        self._lock = threading.Lock()
        self._writing = RecurringWork(self._write_all, "events", "flujo-events", every_s=EVERY_S, ends_with_work=True)

    def start(self) -> SystemEvents:
        """Listen and write from now on."""
        logging.getLogger(_OURS).addHandler(self)
        log.set_outside_listener(self.put)
        self._writing.start()
        return self

    def stop(self) -> None:
        """Write what is left, if Postgres takes it, and stop."""
        log.set_outside_listener(None)
        logging.getLogger(_OURS).removeHandler(self)
        self._writing.stop()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a warning of our own loggers, but not of this module: one about an event that was not written would be the next one."""
        if record.name == __name__:
            return
        data: dict[str, Any] = {"logger": record.name, "message": redact(record.getMessage())}
        if record.exc_info and record.exc_info[0]:
            data["error"] = redact(f"{record.exc_info[0].__name__}: {record.exc_info[1]}")
        self.put(Event("worker.log", data, record.levelname.lower(), record.created))

    def put(self, event: Event) -> None:
        """Take an event, or count it as dropped when too many wait. Never blocks."""
        with self._lock:
            if len(self._waiting) < self._most:
                self._waiting.append(event)
            else:
                self._dropped += 1

    def write(self) -> int:
        """Write up to `BATCH` of what waits; return how many events that were."""
        with self._lock:
            events = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            dropped, self._dropped = self._dropped, 0
        if dropped:
            events.append(Event(DROPPED, {"count": dropped}, "warning", time.time()))
        if not events:
            return 0
        named = [Event(each.name, {"worker": self._worker(), **each.data}, each.level, each.at) for each in events]
        try:
            self._records.note(None, named)
        except Exception as error:
            with self._lock:
                self._dropped += len(events) - bool(dropped) + dropped
            if not isinstance(error, StoreError):
                logger.exception("%d events not written", len(events))
            return 0
        return len(events)

    def _write_all(self) -> None:
        while self.write() >= BATCH:
            pass
