"""`flujo dev`: for operators of pipelines. A command's module is imported when it is used, because probes must be quick."""

from __future__ import annotations

from importlib import import_module

import click

_COMMANDS = {
    "alive": "alive:alive",
    "budgets": "budgets:budgets",
    "env": "env:env",
    "health-check": "health:health_check",
    "show-config": "show_config:show_config",
}


class _Dev(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"flujo_client.cli.{module}"), name)
        return command


@click.group("dev", cls=_Dev)
def command() -> None:
    """Operate pipelines: health, settings, budgets, liveness."""
