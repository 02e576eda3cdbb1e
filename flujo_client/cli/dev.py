"""`flujo dev`: for operators of pipelines. A command's module is imported when it is used, because probes must be quick."""

from __future__ import annotations

import time
from pathlib import Path

import click

from flujo_client.cli.options import Real, option
from flujo_client.cli.output import OK, RUNTIME, say
from flujo_client.cli.plugins import CommandGroup

_HOMES = {
    "alive": "flujo_client.cli.dev:alive",
    "budgets": "flujo_client.cli.settings:budgets",
    "env": "flujo_client.cli.settings:env",
    "health-check": "flujo_client.cli.health:health_check",
    "show-config": "flujo_client.cli.settings:show_config",
}


@click.group("dev", cls=CommandGroup, homes=_HOMES)
def command() -> None:
    """Operate pipelines: health, settings, budgets, liveness."""


@click.command("alive")
@click.argument("file", type=click.Path(path_type=Path))
@option(
    "--max-age",
    type=Real(min=0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="The greatest age of the file that counts as alive.",
)
def alive(*, file: Path, max_age: float) -> int:
    """Was FILE, the heartbeat file of a worker or of beat, touched lately? Exits with 1 when it was not, or is not there."""
    try:
        age = time.time() - file.stat().st_mtime
    except OSError as error:
        say(f"{file}: {error.strerror}")
        return RUNTIME
    if abs(age) <= max_age:  # the clock may have been put back since; the next beat settles it
        return OK
    say(f"{file} was touched {age:.0f} s ago")
    return RUNTIME
