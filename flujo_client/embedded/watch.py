"""The process beside the services that outlives a killed owner: it waits for the owner's lock, then cleans up.

In comes the directory, as its one argument. It asks the kernel, not a list of pids, whether the owner is
gone, and then does exactly what the next start would do.
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
