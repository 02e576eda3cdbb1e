"""The watcher process, which outlives a killed owner of services: it waits for the owner's lock, then cleans up.

Its argument is the directory. It relies on the kernel, not on a list of pids, to know that the owner is gone, and then does exactly what
the next start would do.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from flujo_client.embedded.services import clear_leftovers
from flujo_client.embedded.state import Ownership


def main() -> None:
    """Wait until the owner of the directory is gone, however long that takes, and end what it left running."""
    directory = Path(sys.argv[1])
    with suppress(FileNotFoundError):  # the directory went first, and with it all there was to clear
        ownership = Ownership.wait_for(directory)
        clear_leftovers(directory)
        ownership.release()
