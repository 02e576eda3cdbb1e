"""Start a process for one attempt, or one call of hooks, that may kill it, and report whether it did (ADR 13).

The process has its own lease and connections: it concludes the attempt and publishes what follows as this one would. If it dies while
this one lives, the loss counts against the attempt, and is written at once. It survives this process, so that another attempt's crash does
not affect it. Its order comes through a socket, its settings by the environment.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Event
from flujo_worker.attempts.isolation import DeliveryResult, FailureText, NoFreeSlot, NoProcess
from flujo_worker.ports import PendingHookCall, Room, Stores
from flujo_worker.recovery.child_processes import GONE_S, ChildProcess, ChildProcesses

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger(__name__)

PLACES = 4
"""The maximum number of separate processes that begin at once."""
BEGINNING_S = 3.0
"""Seconds for which an attempt takes a place after its process is ready. A longer step uses a slot of the worker instead."""
START_S = 120.0
"""Seconds that a process may import until it is ready."""
SILENT_LEASES = 5
"""After this many leases without a sign of life a process is ended: something in it blocks."""
EXIT_S = STOP_S = 5.0


class Quarantine:
    """The processes that run attempts apart from this one. Every process can make our own app; another one must be importable."""

    def __init__(
        self, settings: Settings, stores: Stores, app: Celery, children: ChildProcesses, *, is_own_app: bool
    ) -> None:
        self._settings, self._stores, self._app, self._is_own_app = settings, stores, app, is_own_app
        self._children = children
        self._starting = threading.Lock()
        self._ready_at: dict[ChildProcess, float | None] = {}
        self._is_stopping = False

    def perform(self, envelope: Envelope, room: Room) -> DeliveryResult:
        with self._started(room=room, envelope=envelope.to_wire()) as process:
            message = self._follow(process, partial(self._crashed, envelope))
        if message is None:
            return DeliveryResult("waiting" if self._is_stopping else "crashed")
        failure = message["failure"]
        return DeliveryResult(message["disposition"], message["is_part"], failure=failure and FailureText(*failure))

    def call_hooks(self, call: PendingHookCall) -> bool:
        with self._started(call=asdict(call)) as process:
            message = self._follow(process, partial(logger.error, "the process %s that called hooks ended: %s"))
        if message is None and self._is_stopping:
            raise NoFreeSlot
        return message is not None

    def stop(self) -> None:
        """End the processes and release their attempts at once, without a loss."""
        self._is_stopping = True
        running, until = list(self._ready_at), time.monotonic() + STOP_S
        for process in running:
            process.stop()
        for process in running:
            if not process.wait(until - time.monotonic()):
                process.kill()
        self._children.close()

    def _app_path(self) -> str | None:
        path = import_path_of(self._app)
        if path is None and not self._is_own_app:
            raise NoProcess("its Celery app is not in a module, so other processes cannot import it")
        return path

    @contextmanager
    def _started(self, **work: Any) -> Iterator[ChildProcess]:
        order = {"app": self._app_path(), **work}
        with self._starting:
            if self._is_stopping or sum(map(_is_beginning, tuple(self._ready_at.values()))) >= PLACES:
                raise NoFreeSlot
            try:
                process = self._children.start("flujo_worker.processes.quarantine", order=order)
            except OSError as error:
                raise NoProcess(f"no process could be started: {error}") from error
            self._ready_at[process] = None
        try:
            yield process
        finally:
            del self._ready_at[process]
            process.end(EXIT_S)

    def _follow(self, process: ChildProcess, crashed: Callable[[str, str], object]) -> dict[str, Any] | None:
        """Read the process's messages until its work is done. Return None if it has died, after calling `crashed` with how."""
        worker, patience_s = "", START_S
        while (message := process.message(patience_s)) is not None:
            if "refused" in message:
                raise NoProcess(message["refused"])
            if "worker" not in message:
                return message
            worker, patience_s = message["worker"], SILENT_LEASES * self._settings.worker.lease_s
            self._ready_at[process] = self._ready_at[process] or time.monotonic()
        if self._is_stopping:
            return None
        how = process.end(GONE_S)
        if not worker:
            raise NoProcess(f"the process for it ended before it was ready: {how}")
        crashed(worker, how)
        return None

    def _crashed(self, envelope: Envelope, worker: str, how: str) -> None:
        logger.error("the process that ran %s alone ended: %s", envelope.key, how)
        if envelope.key in self._stores.leases.release_unowned(worker, (), 0.0, how=how):
            event = Event("attempt.crashed", {"worker": worker, "how": how}, "warning")
            self._stores.records.note(envelope.ticket.run, [event], key=envelope.key)


def _is_beginning(ready_at: float | None) -> bool:
    """Return whether a process takes a place: it is not ready yet, or has not been for long."""
    return ready_at is None or time.monotonic() - ready_at < BEGINNING_S


def import_path_of(app: Celery) -> str | None:
    """Find the module and the name by which another process can import an app."""
    for name, module in list(sys.modules.items()):
        if name == "__main__":
            name = getattr(getattr(module, "__spec__", None), "name", None) or ""  # noqa: PLW2901 - run with -m it can be imported
        if name.partition(".")[0] == "celery":  # it holds the app of this process, and would have none in another
            continue
        found = [key for key, value in list(getattr(module, "__dict__", {}).items()) if value is app]
        if found and name:
            return f"{name}:{found[0]}"
    return None
