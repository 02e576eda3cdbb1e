"""Processes that a step forks, such as those of `multiprocessing`, end at a signal: they would inherit this process's handlers, which only ask itself to stop."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, Final

_HANDLED: Final[dict[signal.Signals, Any]] = {
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGUSR1: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
}


_mask = threading.local()
"""What a thread that forks had blocked before."""


def keep_signals_from_forks() -> None:
    """Give each process that is forked from this one, from now on, Python's own reaction to signals where this one has a handler.

    Signals are blocked until the new process has these reactions: this process's handler would receive an early one, and have no effect.
    """
    os.register_at_fork(before=_block_signals, after_in_parent=_restore_signals, after_in_child=_reset)


def _block_signals() -> None:
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)


def _restore_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _reset() -> None:
    for number, usual in _HANDLED.items():
        if callable(signal.getsignal(number)):
            signal.signal(number, usual)
    _restore_signals()
