"""`python -m flujo_worker`: the operator's commands, for processes that are started by other processes."""

from flujo_client.cli.entry import start

if __name__ == "__main__":
    start("flujo_worker.cli", "commands")
