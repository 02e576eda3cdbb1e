"""The parent of a `flujo worker`: it starts the worker process, passes on what it is told, and replaces it when it retires.

The worker is a fork of this process, made before anything heavy is imported: it starts as fast as without a parent, and the parent stays
small. It prints nothing: the worker's log says why it retires. A worker that another process of ours started (`--parent`) has a parent
already, and ends with it, however that one ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Final, NoReturn

import click

from flujo_worker.errors import RETIRED

FOLLOW_EVERY_S, GRACE_S = 1.0, 10.0
AT_LEAST_S: Final = 10.0
"""Seconds between two starts: a worker that retires at once must not be started all the time."""
_STOPS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
_PASSED_ON: Final = _STOPS | {signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
_FROM_TERMINAL: Final = 0x80
"""`si_code` of a signal that the kernel sent: a terminal's Ctrl-C goes to the worker too, which would count it twice."""


parent_option = click.option(
    "--parent",
    type=int,
    hidden=True,
    help="Stop in an orderly way when the process with this id, which started this one, is gone.",
)


def follow(parent: int | None) -> None:
    """End this process once that one is gone; with None do nothing."""

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(FOLLOW_EVERY_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)  # its services may be gone as well, and an orderly stop would wait for them
        os.kill(os.getpid(), signal.SIGKILL)

    if parent is not None:
        threading.Thread(target=wait, name="flujo-parent", daemon=True).start()


def supervise() -> int | None:
    """Stay as the parent of a worker; return only in the worker process, with the parent's id.

    None: this system cannot tell who sent a signal (macOS), so the worker runs without a parent.
    """
    if not hasattr(signal, "sigwaitinfo"):
        return None
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON | {signal.SIGCHLD})
    while True:
        began = time.monotonic()
        child = os.fork()
        if not child:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return parent
        code, is_told_to_stop = _watch(child)
        if code != RETIRED or is_told_to_stop:
            _end(0 if code == RETIRED else code)
        heard = signal.sigtimedwait(_STOPS, max(0.0, began + AT_LEAST_S - time.monotonic()))
        if heard and heard.si_signo in _STOPS:  # CPython may return any number after SIGSTOP and SIGCONT
            _end(0)


def _watch(child: int) -> tuple[int, bool]:
    """Pass signals on to the worker until it ends; return its exit code, and whether a signal asked it to stop."""
    is_told_to_stop = False
    while True:
        heard = signal.sigwaitinfo(_PASSED_ON | {signal.SIGCHLD})
        if heard.si_signo != signal.SIGCHLD:
            is_told_to_stop = is_told_to_stop or heard.si_signo in _STOPS
            if heard.si_code != _FROM_TERMINAL:
                os.kill(child, heard.si_signo)
        elif (status := _reap(child)) is not None:
            return os.waitstatus_to_exitcode(status), is_told_to_stop


def _reap(child: int) -> int | None:
    """Return the status of the worker if it has ended. The first process of a container inherits others, which end here too."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                return ended[1]
    return None


def _end(code: int) -> NoReturn:
    """End as the worker did, by the same signal if it was one."""
    if code < 0:
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        os.kill(os.getpid(), -code)
        code = 128 - code  # the first process of a container survives that
    sys.exit(code)
