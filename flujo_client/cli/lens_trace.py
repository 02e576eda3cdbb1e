"""`flujo lens trace`, `spans` and `from-file`: what happened in a run, as a tree or as a flat list."""

from __future__ import annotations

import click
from pydantic import ValidationError

from flujo_client.cli.json_output import span_shapes
from flujo_client.cli.lookup import find_run, run_argument
from flujo_client.cli.output import say, show, show_json
from flujo_client.cli.render import PREVIEW, trace_tree
from flujo_client.cli.tables import spans_table
from flujo_client.cli.timeouts import read, timeout_option
from flujo_client.contract.trace import TraceNode
from flujo_client.errors import ClientError

PLACES = ("ready", "queued", "running", "paused", "parked", "succeeded", "failed", "cancelled", "expired")
"""The values for a place: it, its attempt, or its run."""

preview_option = click.option(
    "--prompt-preview-len",
    "preview",
    type=click.IntRange(min=-1),
    default=PREVIEW,
    show_default=True,
    help="Characters shown of an event's values; -1 for all.",
)
_full_option = click.option(
    "--full",
    "is_full",
    is_flag=True,
    help="Draw every branch, iteration and level; by default, long and deep parts are folded.",
)


@click.command("trace")
@run_argument
@preview_option
@_full_option
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print the whole tree as JSON.")
def trace_run(*, run: str, preview: int, is_full: bool, timeout: float, as_json: bool) -> None:
    """Show what happened, when, and how long it took."""
    trace = read(timeout, lambda client: find_run(client, run).trace())
    if as_json:
        show_json(trace.model_dump())
    else:
        show(trace_tree(trace, preview=preview, is_full=is_full))


@click.command("spans")
@run_argument
@click.option("--status", type=click.Choice(PLACES), help="Only places with this status.")
@click.option("--name", metavar="TEXT", help="Only places whose name contains this.")
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of places as JSON.")
def spans_run(*, run: str, status: str | None, name: str | None, timeout: float, as_json: bool) -> None:
    """List the places of a run's trace, one in a line: steps, containers, what runs in those, and attempts."""
    trace = read(timeout, lambda client: find_run(client, run).trace())
    spans = [
        each
        for each in span_shapes(trace)
        if status in (None, each["status"]) and (name is None or name in each["name"])
    ]
    if as_json:
        show_json(spans)
    elif spans:
        show(spans_table(spans))
    else:
        say("no matching places" if status or name else "no step has begun yet")


@click.command("from-file")
@click.argument("path", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@preview_option
@_full_option
def draw_file(*, path: str, preview: int, is_full: bool) -> None:
    """Draw a trace that `flujo lens trace --json` has written; PATH is a file, or - for stdin. Asks no service."""
    with click.open_file(path, "rb") as file:
        text = file.read()
    try:
        trace = TraceNode.model_validate_json(text)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, wrong["loc"])) or "the document"
        raise ClientError(
            f"{path} does not contain a trace: {place}: {wrong['msg']}",
            suggestion="`flujo lens trace RUN --json` writes one",
            code="NO_TRACE",
        ) from None
    show(trace_tree(trace, preview=preview, is_full=is_full))
