"""`flujo dev alive`: is the process well whose heartbeat file this is? For probes, so it imports nothing that is slow to import."""

from __future__ import annotations

import time
from pathlib import Path

import click

from flujo_client.cli.options import Real
from flujo_client.cli.output import RUNTIME, say


@click.command("alive")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--max-age",
    type=Real(min=0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="The greatest age of the file that counts as alive.",
)
@click.pass_context
def alive(ctx: click.Context, *, file: Path, max_age: float) -> None:
    """Was FILE, the heartbeat file of a worker or of beat, touched lately? Exits with 1 when it was not, or is not there."""
    try:
        age = time.time() - file.stat().st_mtime
    except OSError as error:
        say(f"{file}: {error.strerror}")
        ctx.exit(RUNTIME)
    # The clock may have been put back since; the next beat settles it.
    if abs(age) > max_age:
        say(f"{file} was touched {age:.0f} s ago")
        ctx.exit(RUNTIME)
