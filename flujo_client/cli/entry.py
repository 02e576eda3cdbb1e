"""The entry point of the commands: Ctrl-C is quiet from the first import on, and is one exception and one exit code for all of them."""

from __future__ import annotations

import gc
import signal
import sys
from importlib import import_module
from typing import NoReturn

INTERRUPT = 130


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. After a plain KeyboardInterrupt that passed through `exec`, CPython ends by the signal itself, even if it is caught."""


def main() -> NoReturn:
    start("flujo_client.cli.main", "main")


def start(module: str, name: str) -> NoReturn:
    """Import a command and run it; importing what it needs takes most of a short command's time."""
    listen()
    gc.disable()  # searching imports for garbage takes a fifth of the start; `ErrorHandlingGroup` enables it again
    try:
        getattr(import_module(module), name)()
    except KeyboardInterrupt:
        sys.exit(INTERRUPT)
    sys.exit(0)


def listen() -> None:
    """Have Ctrl-C raise `Interrupted`, unless the process that started this one has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(*_: object) -> None:
    raise Interrupted
