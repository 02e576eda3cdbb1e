"""Record the output and logs of steps, as events of their run and lines of the worker's log.

An attempt without output costs nothing: standard output and the root logger are intercepted on writes, and only writes inside an attempt
are recorded. Threads that a step has started do not belong to its attempt.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO, cast

from flujo_client.tracebacks import traceback_of
from flujo_worker.observe.log import HTTP_CLIENTS, WatchedStdout, collect_logged, print_line

_OURS = ("flujo_worker", "flujo_client")
_CHATTY = "asyncio", "celery", "kombu", "psycopg", "redis", *HTTP_CLIENTS
"""Libraries below steps that log each of their calls: only their warnings are taken."""


class StepStdout(WatchedStdout):
    """Standard output: an attempt's output becomes separate lines, everything else passes through."""

    def write(self, text: str) -> int:
        if not print_line(text):
            self.beneath.write(text)
        return len(text)


class StepLogs(logging.Handler):
    """Takes the records that are logged inside an attempt; their lines in the worker's log are written by other handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < _least(record.name):
            return
        try:
            data = {"logger": record.name, "message": record.getMessage()}
            error = record.exc_info[1] if record.exc_info else None
            if error is not None:
                data["traceback"] = traceback_of(error) or f"{type(error).__name__}: {error}"
            collect_logged(record.levelname.lower(), data)
        except Exception:  # noqa: BLE001 - a record that cannot be written breaks no step
            self.handleError(record)


def _least(name: str) -> int:
    """Return the level from which a logger's records are taken. DEBUG only where it is set on the logger, not on the root."""
    package = name.partition(".")[0]
    if package in _OURS:
        return logging.CRITICAL + 1
    if package in _CHATTY:
        return logging.WARNING
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None and logger.parent is not None:
        if logger.level:
            return logger.level
        logger = logger.parent
    return logging.INFO


_handler = StepLogs()


def capture_step_output() -> None:
    """Take what steps print and log from now on."""
    if not isinstance(sys.stdout, StepStdout):
        sys.stdout = cast("TextIO", StepStdout(sys.stdout))
    logging.getLogger().addHandler(_handler)


def release_step_output() -> None:
    """Leave standard output and logging as they were."""
    out: Any = sys.stdout
    if isinstance(out, StepStdout):
        sys.stdout = out.beneath
    logging.getLogger().removeHandler(_handler)
