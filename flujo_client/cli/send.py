"""`flujo send`: send an event to a run, and print the event's id."""

from __future__ import annotations

import click

from flujo_client.api.client import FlujoClient
from flujo_client.cli.inputs import json_option, one_value
from flujo_client.cli.lookup import find_run
from flujo_client.cli.options import option
from flujo_client.cli.output import show_value


@click.command("send")
@click.argument("run")
@click.argument("name")
@click.argument("value", required=False)
@option(
    "--id", "event_id", help="The event's id: the same id again changes nothing; each event has its own by default."
)
@option("--actor", help="The name of the person who sends it; stored with the event.")
@json_option("The event's value")
def command(
    *, run: str, name: str, value: str | None, json_text: str | None, event_id: str | None, actor: str | None
) -> None:
    """Send RUN the event NAME with VALUE as text, or with JSON; '-' reads stdin. Without either its value is null."""
    if value is not None and json_text is not None:
        raise click.UsageError("give the value as VALUE, or with --input-json, not both")
    given = None if value is None and json_text is None else one_value(value or "", json_text)
    with FlujoClient() as client:
        show_value(find_run(client, run).send(name, given, id=event_id, actor=actor))
