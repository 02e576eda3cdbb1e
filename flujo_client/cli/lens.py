"""`flujo lens`: look at runs. A run is named by its id, or by as much of its beginning as no other run shares.

What takes the worker's code to look at joins by entry points of the group `flujo.lens`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import click

from flujo_client.cli.joined import load
from flujo_client.cli.lookup import find_run
from flujo_client.cli.output import say, show, show_json
from flujo_client.cli.render import PREVIEW, trace_tree
from flujo_client.cli.shapes import details_shape, run_shape
from flujo_client.cli.tables import error_section, run_card, runs_table, section
from flujo_client.client import FlujoClient
from flujo_client.errors import SerializationError
from flujo_client.gateway import requests
from flujo_client.serial import Resolver, decode, safe_deserialize
from flujo_client.verbs import peek_at

if TYPE_CHECKING:
    from flujo_client.contract.results import PipelineResult
    from flujo_client.serial import Packed

GROUP = "flujo.lens"
STATUSES = ("queued", "running", "paused", "parked", "succeeded", "failed", "cancelled", "expired")


class _Lens(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *entry_points(group=GROUP).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        point = next(iter(entry_points(group=GROUP, name=cmd_name)), None)
        return load(point) if own is None and point is not None else own


@click.group("lens", cls=_Lens)
def command() -> None:
    """Look at runs."""


@command.command("list")
@click.option("--status", type=click.Choice(STATUSES), help="Only runs that are so.")
@click.option("--pipeline", metavar="NAME", help="Only runs of this pipeline: its name or its reference.")
@click.option("--parent", metavar="RUN", help="Only child runs of this run.")
@click.option("--background", is_flag=True, help="Only runs of background steps, with the run that launched each.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print a list of runs as JSON.")
def list_runs(
    *, status: str | None, pipeline: str | None, parent: str | None, background: bool, limit: int, as_json: bool
) -> None:
    """List runs, newest first."""
    with FlujoClient() as client:
        of = find_run(client, parent).id if parent else None
        runs = client.list_runs(status=status, pipeline=pipeline, parent=of, background=background or None, limit=limit)
    if as_json:
        show_json([run_shape(run) for run in runs])
    elif runs:
        show(runs_table(runs, datetime.now(UTC), parents=background))
    else:
        say("no such run" if status or pipeline or parent or background else "no run yet")


@command.command("show")
@click.argument("run")
@click.option("--show-input", is_flag=True, help="Also the input.")
@click.option("--show-output", is_flag=True, help="Also the output and the context.")
@click.option("--show-error", is_flag=True, help="Also the whole error.")
@click.option("--verbose", "-v", is_flag=True, help="Also fingerprint, workers and what each step gave.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def show_run(*, run: str, show_input: bool, show_output: bool, show_error: bool, verbose: bool, as_json: bool) -> None:
    """Show one run: what it is, how it went, and its steps."""
    with FlujoClient() as client:
        handle = find_run(client, run)
        record, trace, budgets = handle.record(), handle.trace(), handle.budgets()
        result: PipelineResult = client.perform(peek_at(client.settings, handle.id))
        values = {"input": _value(client, record.input)} if show_input else {}
    if show_output:
        values |= {"output": result.output, "context": result.final_pipeline_context}
    if verbose:
        values["step_outputs"] = {step.name: step.output for step in result.step_history}
    details = details_shape(record, trace, budgets, **values)
    if as_json:
        show_json(details)
        return
    show(run_card(record, trace, datetime.now(UTC), details["budgets"], verbose=verbose))
    for title, value in values.items():
        show(section(title.replace("_", " "), value))
    if show_error and details["error"]:
        show(error_section(details["error"]))


@command.command("trace")
@click.argument("run")
@click.option(
    "--prompt-preview-len",
    "preview",
    type=click.IntRange(min=-1),
    default=PREVIEW,
    show_default=True,
    help="Characters shown of an event's values; -1 for all.",
)
@click.option(
    "--full",
    "is_full",
    is_flag=True,
    help="Draw every branch, iteration and level; what is many or deep is folded otherwise.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole tree as JSON.")
def trace_run(*, run: str, preview: int, is_full: bool, as_json: bool) -> None:
    """Show what happened, when, and how long it took."""
    with FlujoClient() as client:
        trace = find_run(client, run).trace()
    if as_json:
        show_json(trace.model_dump())
    else:
        show(trace_tree(trace, preview=preview, is_full=is_full))


def _value(client: FlujoClient, packed: Packed | None) -> Any:
    """Read a recorded value; one whose class is not to be had here is shown as plain data."""
    if packed is None:
        return None
    if packed.is_reference:
        packed = client.ask(requests.blobs([packed.digest]))[packed.digest]
    tree = packed.tree()
    try:
        return decode(tree, resolve=Resolver(client.settings.allowed_imports))
    except SerializationError:
        return safe_deserialize(tree)
