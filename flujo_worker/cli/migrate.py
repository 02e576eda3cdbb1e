"""`flujo migrate`: bring the database up to this code."""

from __future__ import annotations

import click

from flujo_client.cli.output import say, show_json
from flujo_client.config.manager import ConfigManager
from flujo_client.embedded.local import join_services
from flujo_worker.store.migrate import migrate


@click.command("migrate")
@click.option("--json", "as_json", is_flag=True, help="Print what was applied as JSON.")
def command(*, as_json: bool) -> None:
    """Bring the database up to this code. Safe to run from many processes at once, and under running workers."""
    settings = join_services(ConfigManager().settings())
    applied = migrate(settings.database())
    if as_json:
        show_json([{"version": each.version, "name": each.name} for each in applied])
        return
    for each in applied:
        say(f"applied {each.version:04d}_{each.name}")
    if not applied:
        say("nothing to do")
