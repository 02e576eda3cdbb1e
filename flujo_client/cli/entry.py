"""The console script's entry point: Ctrl-C is quiet from the first import on, and its exit code is that of every command."""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

from flujo_client.cli.interrupt import INTERRUPT, listen


def main() -> NoReturn:
    """Run `flujo`; importing what it needs takes most of a short command's time."""
    listen()
    gc.disable()  # searching imports for garbage takes a fifth of the start; `ErrorHandlingGroup` enables it again
    try:
        from flujo_client.cli.main import main as flujo

        flujo()
    except KeyboardInterrupt:
        sys.exit(INTERRUPT)
    sys.exit(0)
