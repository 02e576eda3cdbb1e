"""Serve as a worker: what `celery worker` starts, without Celery's own command line, which costs a start a quarter of its time."""

from __future__ import annotations

import gc
import logging
import os
import secrets
import socket
import sys
import time
from importlib import import_module

from celery import signals

from flujo_client.config.manager import Settings
from flujo_client.config.models import Log
from flujo_worker.celery_app.app import FlujoWorker
from flujo_worker.celery_app.consumer.events import EventsOnRequest
from flujo_worker.celery_app.consumer.pool import POOL
from flujo_worker.celery_app.consumer.stopping import after
from flujo_worker.concurrency.forks import keep_signals_from_forks
from flujo_worker.liveness.watchdog import RARELY
from flujo_worker.observe.log import configure

COLLECT_EVERY = 50_000
"""The number of new objects from which the interpreter searches them for garbage. The watchdog begins the searches among older objects, when memory grows
and after a burst: each looks at all attempts in flight, and takes 0.4 s if 500 of them call models."""
EXIT_S = 3.0
"""Seconds that exit handlers and threads of other code have at least, whatever is left of the grace time."""

logger = logging.getLogger(__name__)


def serve(settings: Settings, *, concurrency: int | None, queues: str | None, pool: str, build: str | None) -> int:
    """Work with the options of `flujo worker` until asked to stop; return the exit code. With prefork, one attempt for each core is the default."""
    import_module("flujo_worker.engine.host")  # before prefork's children are forked, which share it
    gc.freeze()
    gc.enable()
    gc.set_threshold(COLLECT_EVERY, RARELY)
    if concurrency is None and pool == "prefork" and "concurrency" not in settings.worker.model_fields_set:
        concurrency = os.cpu_count()
    given = {"concurrency": concurrency, "build": build}
    own = settings.worker.model_copy(update={name: each for name, each in given.items() if each is not None})
    settings = settings.model_copy(update={"worker": own})
    _log_only(settings.log)
    flujo = FlujoWorker(settings=settings)
    flujo.app.events.dispatcher_cls = EventsOnRequest  # type: ignore[assignment]  # its name, or the class
    worker = flujo.app.Worker(
        hostname=f"flujo-{os.getpid()}-{secrets.token_hex(2)}@{socket.gethostname()}",
        pool_cls=POOL if pool == "attempts" else pool,
        concurrency=settings.worker.concurrency,
        queues=queues.split(",") if queues else list(flujo.queues),
        loglevel=logging.getLevelNamesMapping()[settings.log.level],
        quiet=True,
        without_gossip=True,
        without_mingle=True,
    )
    keep_signals_from_forks()
    asked: dict[int, float] = {}
    signals.worker_shutting_down.connect(
        lambda exitcode=0, **_: asked.setdefault(exitcode, time.monotonic()), weak=False
    )
    worker.start()
    # Celery has the exit code of a crash for SIGINT and SIGQUIT.
    code = 0 if worker.exitcode in asked else worker.exitcode or 0
    began = min(asked.values(), default=time.monotonic())
    _leave_by(max(EXIT_S, began + settings.worker.shutdown_grace_s - time.monotonic()), code)
    return code


def _leave_by(seconds: float, code: int) -> None:
    """End this process after so many seconds, even if exit handlers of other code or its threads still run."""

    def leave() -> None:
        what = "exit handlers or threads of other code did not end within %.1f seconds: ended without them"
        logger.warning(what, seconds)
        logging.shutdown()
        os._exit(code)

    after(seconds, leave)


def _log_only(log: Log) -> None:
    """Let standard output have the log's lines and nothing else from now on. What Celery says about Ctrl-C is for people at a terminal."""
    configure(log)
    sys.__stdout__ = sys.__stderr__ if sys.stderr.isatty() else None  # type: ignore[misc]
