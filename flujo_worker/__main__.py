"""`python -m flujo_worker`: the operator's commands, for processes that are started by other processes."""

import sys

from flujo_client.cli.interrupt import INTERRUPT, listen

if __name__ == "__main__":
    listen()
    try:
        from flujo_worker.cli import commands

        commands()
    except KeyboardInterrupt:
        sys.exit(INTERRUPT)
