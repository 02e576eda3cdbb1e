"""The process that `flujo_worker.recovery.quarantine` starts: it performs one attempt or calls hooks once, reports the result, and ends.

It only does the work of one attempt: it neither consumes nor sweeps. It continues when the worker that started it dies, because that may be
another attempt's fault, and ends when it has also lost its connection to Postgres.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import Any

import orjson
from celery import Celery

from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.contract.envelope import Envelope
from flujo_client.transport.wire import register
from flujo_worker import failpoints
from flujo_worker.celery_app.app import FlujoWorker
from flujo_worker.celery_app.canvas import end_task
from flujo_worker.concurrency.forks import keep_signals_from_forks
from flujo_worker.engine.host import Host
from flujo_worker.ports import PendingHookCall

logger = logging.getLogger(__name__)

BEAT_S = 1.0
ORPHAN_LEASES = 5
"""An orphan that could not renew its lease for so many of them ends: its database is gone as well."""


def main(channel: socket.socket, order: dict[str, Any]) -> None:
    """Do the work of an order."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the process that started this one decides when it ends
        signal.signal(number, lambda *_: None)
    keep_signals_from_forks()
    line = _Line(channel)
    try:
        settings = _settings()
        app = _app(order["app"], settings)
        host = Host(settings, app, is_own_app=True, is_child=True)
        # A loop that is blocked here is this attempt's fault: a loss, unless its outcome is merged.
        host.steps.hand_back = lambda: None
        if app is ConfigManager.attached:
            host.end_tasks_by(lambda payload: end_task(app, payload))
        host.begin()
        gc.freeze()
        gc.enable()  # off from the start: searching imports for garbage takes a fifth of it
    except Exception as error:
        logger.exception("this process cannot run attempts")
        line.send({"refused": f"{type(error).__name__}: {error}"})
        return
    line.send({"worker": host.worker})
    performing = threading.Thread(target=_perform, args=(host, order, line), name="flujo-apart", daemon=True)
    performing.start()
    while performing.is_alive():
        is_stopped = line.hears_stop(BEAT_S)
        if is_stopped:
            host.hand_back()
        if is_stopped or (line.is_broken and host.silent_s > ORPHAN_LEASES * settings.worker.lease_s):
            host.release()
            os._exit(0)
        line.send({"worker": host.worker})
    host.end()
    sys.exit(not line.has_sent_end)


class _Line:
    """The socket to the worker that started this process. That one may be gone."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._lock = channel, threading.Lock()
        self.is_broken = self.has_sent_end = False

    def send(self, message: dict[str, Any]) -> None:
        with self._lock, suppress(OSError):
            self._channel.sendall(orjson.dumps(message) + b"\n")  # the attempt may have replaced `json.dumps`

    def hears_stop(self, seconds: float) -> bool:
        """Listen so long, or until a message comes; return whether this process is to end."""
        if self.is_broken:
            threading.Event().wait(seconds)
            return False
        if not select.select([self._channel], [], [], seconds)[0]:
            return False
        heard = b""
        with suppress(OSError):
            heard = self._channel.recv(64)
        self.is_broken = not heard
        return bool(heard)


def _perform(host: Host, order: dict[str, Any], line: _Line) -> None:
    """Do the work of an order and report its result.

    A result that could not be recorded is a loss, as in a worker that gives up an attempt.
    """
    try:
        done = _done(host, order)
    except Exception:
        logger.exception("the outcome could not be recorded")
        return
    line.send(done)
    line.has_sent_end = True


def _done(host: Host, order: dict[str, Any]) -> dict[str, Any]:
    if "call" in order:
        host.call_hooks(PendingHookCall(**order["call"]))
        return {}
    delivered = host.perform_in(order["room"], Envelope.from_wire(order["envelope"]))
    return {
        "disposition": delivered.disposition,
        "is_part": delivered.is_part,
        "failure": delivered.failure and tuple(delivered.failure),
    }


def _settings() -> Settings:
    """Read the settings of the worker that started this process; the heartbeat file belongs only to that one."""
    settings = ConfigManager().settings()
    own = settings.worker.model_copy(update={"heartbeat_file": None, "concurrency": 1})
    return settings.model_copy(update={"worker": own})


def _app(path: str | None, settings: Settings) -> Celery:
    """Make our own app, or import yours with all that a worker of it imports."""
    if path is None:
        app = FlujoWorker(settings=settings).app
    else:
        module, _, name = path.partition(":")
        app = getattr(import_module(module), name)
        if not isinstance(app, Celery):
            raise TypeError(f"{path} is not a Celery app in this process")
        register(settings.keys(), max_bytes=settings.limits.message_max_bytes)
        failpoints.arm(settings.failpoints)
    app.set_default()
    app.log.setup(loglevel=logging.getLevelNamesMapping()[settings.log.level])
    app.loader.import_default_modules()
    return app
