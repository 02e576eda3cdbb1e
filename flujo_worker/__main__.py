"""`python -m flujo_worker`: the operator's commands, for processes that are started by other processes."""

import gc
import sys

from flujo_client.cli.interrupt import INTERRUPT, listen

if __name__ == "__main__":
    listen()
    gc.disable()  # searching imports for garbage takes a fifth of the start; `ErrorHandlingGroup` enables it again
    try:
        from flujo_worker.cli import commands

        commands()
    except KeyboardInterrupt:
        sys.exit(INTERRUPT)
