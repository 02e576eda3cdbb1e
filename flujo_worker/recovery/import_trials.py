"""Find out whether the code of a run can be loaded without harm to the process, outside an attempt (ADR 13).

A module may end its process when it is imported, or never end its import. Code that loads it outside an attempt asks here first: the
sweeper, which would be killed or blocked for all runs, and the callers of hooks. It is first loaded in a separate process. Nothing waits
for that: until it has ended, the answer is no.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any

from flujo_worker.changed_code.code_registry import CodeMismatch, CodeRegistry, put_bounded
from flujo_worker.errors import StoreError, Unreadable
from flujo_worker.recovery.child_processes import ChildProcesses

logger = logging.getLogger(__name__)

EXIT_CODE = 86
"""The exit code of a process after loading: a number that no module would choose."""
LOADED = f"exit code {EXIT_CODE}"
TRIAL_S = 30
"""Seconds that loading may take."""
AGAIN_S = 300.0
"""Seconds until harmful code is tried again, because it may have been replaced."""


class ImportTrials:
    """Loads code in separate processes, one after the other; code that the catalog has loaded needs no trial."""

    def __init__(self, children: ChildProcesses, catalog: CodeRegistry, threads: Executor) -> None:
        self._children, self._catalog, self._threads = children, catalog, threads
        self._one = threading.Lock()
        self._trials: dict[tuple[str, str], Future[float]] = {}

    def have_ended(self) -> bool:
        """Return whether no trial is running."""
        return all(trial.done() for trial in list(self._trials.values()))

    def may_load(self, reference: str, fingerprint: str) -> bool:
        """Return whether this code is known to be harmless; begin a trial if that is unknown."""
        if self._catalog.has(reference):
            return True
        code = reference, fingerprint
        trial = self._trials.get(code)
        if trial is None or (trial.done() and trial.result() < time.monotonic()):
            put_bounded(self._trials, code, self._threads.submit(self._try, *code))
            return False
        return trial.done() and trial.result() == float("inf")

    def _try(self, reference: str, fingerprint: str) -> float:
        """Load code in another process. Return until when the result is valid: infinity if the code is harmless, minus infinity without a trial."""
        with self._one:
            try:
                process = self._children.start(__name__, **self._catalog.order(reference, fingerprint))
            except Unreadable:  # whoever loads it gets the same error
                return float("inf")
            except (OSError, StoreError) as error:
                logger.warning("'%s' could not be loaded on trial: %r", reference, error)
                return float("-inf")
            if (how := process.end(2 * TRIAL_S)) == LOADED:
                return float("inf")
            logger.error(
                "loading '%s' ends its process (%s): its runs wait for another version of the code", reference, how
            )
        return time.monotonic() + AGAIN_S


def main(_: socket.socket, **order: Any) -> None:
    """Load code in this process, and end the process. An import error is harmless: the caller gets it too, with the reason."""
    signal.alarm(TRIAL_S)  # ends this process even if no other process is left to do so, and nothing in it can
    with suppress(CodeMismatch, Unreadable):
        CodeRegistry.obey(**order)
    os._exit(EXIT_CODE)
