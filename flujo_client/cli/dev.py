"""`flujo dev`: for operators of pipelines. A command's module is imported when it is used, because probes must be quick."""

from __future__ import annotations

import click

from flujo_client.cli.plugins import LazyGroup

_HOMES = {
    "alive": "flujo_client.cli.alive:alive",
    "budgets": "flujo_client.cli.settings:budgets",
    "env": "flujo_client.cli.settings:env",
    "health-check": "flujo_client.cli.health:health_check",
    "show-config": "flujo_client.cli.settings:show_config",
}


@click.group("dev", cls=LazyGroup, homes=_HOMES)
def command() -> None:
    """Operate pipelines: health, settings, budgets, liveness."""
