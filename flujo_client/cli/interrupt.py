"""Ctrl-C: one exception and one exit code for every command, from the first import on."""

from __future__ import annotations

import signal

INTERRUPT = 130


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. After a plain KeyboardInterrupt that passed through `exec`, CPython ends by the signal itself, even if it is caught."""


def listen() -> None:
    """Have Ctrl-C raise `Interrupted`, unless the process that started this one has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(*_: object) -> None:
    raise Interrupted
