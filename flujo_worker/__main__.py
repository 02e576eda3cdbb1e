"""`python -m flujo_worker`: the operator's commands, for processes that are started by other processes."""

from flujo_worker.cli import commands

if __name__ == "__main__":
    commands()
