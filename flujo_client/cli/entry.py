"""The console script's first door: Ctrl-C is quiet from the first import on, and its exit code is that of every command."""

from __future__ import annotations

import sys
from typing import NoReturn

from flujo_client.cli.interrupt import INTERRUPT, listen


def main() -> NoReturn:
    """Run `flujo`; importing what it needs takes most of a short command's time."""
    listen()
    try:
        from flujo_client.cli.main import main as flujo

        flujo()
    except KeyboardInterrupt:
        sys.exit(INTERRUPT)
    sys.exit(0)
