"""`flujo dev`: for whoever looks after pipelines."""

from __future__ import annotations

import click

from flujo_client.cli.health import health_check


@click.group("dev")
def command() -> None:
    """For whoever looks after pipelines."""


command.add_command(health_check)
