"""The operator's commands: worker, beat, migrate, up, chaos. They join `flujo` by entry point, each loaded when it is used."""

from flujo_client.cli.plugins import ErrorHandlingGroup

NAMES = ("beat", "chaos", "code", "migrate", "up", "worker")

commands = ErrorHandlingGroup(
    name="flujo_worker", help=__doc__, homes={name: f"flujo_worker.cli.{name}:command" for name in NAMES}
)
