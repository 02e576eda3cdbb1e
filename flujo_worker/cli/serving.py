"""Serve as a worker: what `celery worker` starts, without Celery's own command line, which costs a start a quarter of its time."""

from __future__ import annotations

import gc
import logging
import os
import sys
from typing import TYPE_CHECKING

from celery import signals

from flujo_worker.app import FlujoWorker
from flujo_worker.consumer.pool import POOL
from flujo_worker.observe.log import configure

if TYPE_CHECKING:
    from flujo_client.config.manager import Settings
    from flujo_client.config.models import Log

COLLECT_EVERY = 10_000
"""Objects between garbage collections. With Python's 700, hundreds of attempts in flight are searched again and again."""
INTERRUPTED = "Warm SIGINT"
"""A stop in order, for which Celery has the exit code of a crash: one Ctrl-C."""


def serve(settings: Settings, *, concurrency: int | None, queues: str | None, pool: str, build: str | None) -> int:
    """Work until told to stop; return the exit code.

    Args:
        settings: the project's.
        concurrency: how many attempts run at once; None: as the settings say, with prefork one for each core.
        queues: their names, separated by commas; attempts and control when None.
        pool: `attempts`, Flujo's own, or one of Celery's.
        build: what the operator calls the code that is here.
    """
    gc.set_threshold(COLLECT_EVERY)
    if concurrency is None and pool == "prefork" and "concurrency" not in settings.worker.model_fields_set:
        concurrency = os.cpu_count()
    given = {"concurrency": concurrency, "build": build}
    own = settings.worker.model_copy(update={name: each for name, each in given.items() if each is not None})
    settings = settings.model_copy(update={"worker": own})
    _log_only(settings.log)
    flujo = FlujoWorker(settings=settings)
    worker = flujo.app.Worker(
        pool_cls=POOL if pool == "attempts" else pool,
        concurrency=settings.worker.concurrency,
        queues=queues.split(",") if queues else list(flujo.queues),
        loglevel=logging.getLevelNamesMapping()[settings.log.level],
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    arguments: list[str] = []
    signals.worker_shutting_down.connect(lambda sig="", how="", **_: arguments.append(f"{how} {sig}"), weak=False)
    worker.start()
    return 0 if arguments == [INTERRUPTED] else worker.exitcode or 0


def _log_only(log: Log) -> None:
    """Let standard output have the log's lines and nothing else from now on. What Celery says about Ctrl-C is for people at a terminal."""
    configure(log)
    sys.__stdout__ = sys.__stderr__ if sys.stderr.isatty() else None  # type: ignore[misc]
