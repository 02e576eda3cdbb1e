"""`flujo runs`: list runs, and cancel them."""

from __future__ import annotations

import click

from flujo_client.cli.lens import list_runs
from flujo_client.cli.lookup import find_run
from flujo_client.cli.output import RUNTIME, say, show_json, show_value
from flujo_client.client import CANCEL_PATIENCE_S, FlujoClient


@click.group("runs")
def command() -> None:
    """List and cancel runs."""


command.add_command(list_runs)


@command.command("cancel")
@click.argument("run")
@click.option("--reason", help="Kept in the run's story.")
@click.option("--actor", help="Who asks; kept in the run's story.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=CANCEL_PATIENCE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until a worker has acknowledged it; the cancel holds from the start.",
)
@click.option("--json", "as_json", is_flag=True, help="Print {id, cancelled, status}.")
@click.pass_context
def cancel(
    ctx: click.Context, *, run: str, reason: str | None, actor: str | None, timeout: float, as_json: bool
) -> None:
    """Cancel a run. Exits with 1 when it had ended otherwise before."""
    with FlujoClient() as client:
        handle = find_run(client, run)
        is_cancelled = handle.cancel(reason=reason, actor=actor, timeout=timeout)
        status = handle.status()
    if as_json:
        show_json({"id": handle.id, "cancelled": is_cancelled, "status": status})
    elif is_cancelled:
        show_value(handle.id)
        say("cancelled")
    else:
        say(f"{handle.id} had {status} already")
    ctx.exit(0 if is_cancelled else RUNTIME)
