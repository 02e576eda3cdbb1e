"""The operator's commands: worker, beat, migrate, up, chaos. They join `flujo` by entry point, each loaded when it is used."""

from __future__ import annotations

from flujo_client.cli.plugins import ErrorHandlingGroup, LazyGroup

NAMES = ("beat", "chaos", "code", "migrate", "up", "worker")


class _Commands(LazyGroup, ErrorHandlingGroup):
    """The commands, with the exit codes of `flujo`."""


commands = _Commands(
    name="flujo_worker", help=__doc__, homes={name: f"flujo_worker.cli.{name}:command" for name in NAMES}
)
