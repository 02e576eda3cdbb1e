"""The operator's commands: worker, beat, migrate, up, chaos. They join `flujo` by entry point, each loaded when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from flujo_client.cli.output import ErrorHandlingGroup

if TYPE_CHECKING:
    import click

NAMES = ("beat", "chaos", "code", "migrate", "up", "worker")


class _Commands(ErrorHandlingGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in NAMES:
            return None
        command: click.Command = import_module(f"flujo_worker.cli.{cmd_name}").command
        return command


commands = _Commands(name="flujo_worker", help=__doc__)
