"""The console script's first door: Ctrl-C is quiet from the first import on, and its exit code is that of every command."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

INTERRUPT = 130


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. CPython ends by the signal itself, whatever is caught, after a plain KeyboardInterrupt that passed through `exec`."""


def main() -> NoReturn:
    """Run `flujo`; importing what it needs takes most of a short command's time."""
    listen()
    try:
        from flujo_client.cli.main import main as flujo

        flujo()
    except KeyboardInterrupt:
        sys.exit(INTERRUPT)
    sys.exit(0)


def listen() -> None:
    """Have Ctrl-C raise `Interrupted`, unless whoever started this process has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(*_: object) -> None:
    raise Interrupted
