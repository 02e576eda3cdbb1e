"""Start a process for one attempt, or one call of hooks, that may kill it, and report whether it did (ADR 13).

The process is a fresh interpreter, with its own lease and connections: it concludes the attempt and publishes what follows as this one
would. If it dies while this one lives, the loss counts against the attempt, and is written at once. It survives this process, so that
another attempt's crash does not affect it. Its order comes through a socket, its settings by the environment.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Event
from flujo_worker.attempts.isolation import DeliveryResult, FailureText, NoFreeSlot, NoProcess
from flujo_worker.ports import PendingHookCall, Room, Stores

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger(__name__)

PLACES = 2
"""The maximum of separate processes that a worker starts at once."""
BEGINNING_S = 3.0
"""For how long after its process is ready an attempt takes a place. A longer step delays no other: it has a slot of the worker."""
START_S = 120.0
"""Seconds that a process may import until it is ready."""
SILENT_LEASES = 5
"""After this many leases without a sign of life a process is ended: something in it blocks."""
EXIT_S = STOP_S = 5.0
GONE_S = 1.0
"""Seconds until a process whose socket is closed has ended."""
BOOT = (
    "import gc, json, socket, sys; gc.disable(); channel = socket.socket(fileno=int(sys.argv[1])); channel.set_inheritable(False); "
    "order = json.loads(channel.makefile().readline()); sys.path[:] = order['path']; "
    "from flujo_worker.processes.quarantine import main; main(channel, order)"
)


class Quarantine:
    """The processes that run attempts apart from this one. Every process can make our own app; another one must be importable."""

    def __init__(self, settings: Settings, stores: Stores, app: Celery, *, is_own_app: bool) -> None:
        self._settings, self._stores, self._app, self._is_own_app = settings, stores, app, is_own_app
        self._starting = threading.Lock()
        self._running: set[_Process] = set()
        self._is_stopping = False

    def perform(self, envelope: Envelope, room: Room) -> DeliveryResult:
        with self._started({"room": room, "envelope": envelope.to_wire()}) as process:
            message = self._follow(process, partial(self._crashed, envelope))
        if message is None:
            return DeliveryResult("waiting" if self._is_stopping else "crashed")
        failure = message["failure"]
        return DeliveryResult(message["disposition"], message["counts"], failure=failure and FailureText(*failure))

    def call_hooks(self, call: PendingHookCall) -> bool:
        with self._started({"call": asdict(call)}) as process:
            message = self._follow(process, partial(logger.error, "the process %s that called hooks ended: %s"))
        if message is None and self._is_stopping:
            raise NoFreeSlot
        return message is not None

    def stop(self) -> None:
        """End the processes; what they work on is free at once, without blame."""
        self._is_stopping = True
        for process in list(self._running):
            process.stop()
        for process in list(self._running):
            process.end(STOP_S)

    def _setting(self) -> dict[str, Any]:
        app = import_path_of(self._app)
        if app is None and not self._is_own_app:
            raise NoProcess("its Celery app is not in a module, so other processes cannot import it")
        return {"path": sys.path, "app": app}

    @contextmanager
    def _started(self, work: dict[str, Any]) -> Iterator[_Process]:
        order = self._setting() | work
        with self._starting:
            if self._is_stopping or sum(each.is_beginning for each in tuple(self._running)) >= PLACES:
                raise NoFreeSlot
            try:
                process = _Process(order, self._settings)
            except OSError as error:
                raise NoProcess(f"no process could be started: {error}") from error
            self._running.add(process)
        try:
            yield process
        finally:
            self._running.discard(process)
            process.end(EXIT_S)

    def _follow(self, process: _Process, crashed: Callable[[str, str], object]) -> dict[str, Any] | None:
        """Read the process's messages until it has done its work; None: it is gone, and `crashed` was called with how."""
        worker: str | None = None
        for message in process.messages(START_S, SILENT_LEASES * self._settings.worker.lease_s):
            if "refused" in message:
                raise NoProcess(message["refused"])
            if "worker" not in message:
                return message
            worker = message["worker"]
        if self._is_stopping:
            return None
        how = process.end(GONE_S)
        if worker is None:
            raise NoProcess(f"the process for it ended before it was ready: {how}")
        crashed(worker, how)
        return None

    def _crashed(self, envelope: Envelope, worker: str, how: str) -> None:
        logger.error("the process that ran %s alone ended: %s", envelope.key, how)
        if envelope.key in self._stores.leases.release_unowned(worker, (), 0.0, how=how):
            event = Event("attempt.crashed", {"worker": worker, "how": how}, "warning")
            self._stores.records.note(envelope.ticket.run, [event], key=envelope.key)


class _Process:
    """One process, and the socket for its order and its messages."""

    def __init__(self, order: dict[str, Any], settings: Settings) -> None:
        self._ready_at: float | None = None
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-c", BOOT, str(theirs.fileno())],
                env=ConfigManager().child_environment(settings),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a signal to this process's group is not for it
            )
        with suppress(OSError):  # it is gone already: it will send nothing
            self._channel.sendall(json.dumps(order).encode() + b"\n")

    @property
    def is_beginning(self) -> bool:
        """Return whether it takes a place: it is not ready yet, or has not been for long."""
        return self._ready_at is None or time.monotonic() - self._ready_at < BEGINNING_S

    def messages(self, first_s: float, silent_s: float) -> Iterator[dict[str, Any]]:
        """Read line after line, until it is gone or was silent for too long."""
        self._channel.settimeout(first_s)
        with self._channel.makefile("rb") as lines, suppress(OSError):
            while (line := lines.readline()).endswith(b"\n"):
                self._ready_at = self._ready_at or time.monotonic()
                self._channel.settimeout(silent_s)
                yield json.loads(line)

    def stop(self) -> None:
        """Ask it to release its attempt and to end."""
        with suppress(OSError):
            self._channel.sendall(b"stop\n")

    def end(self, wait_s: float) -> str:
        """Wait for its end, or end it; return how it ended."""
        try:
            code = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._channel.close()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


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
