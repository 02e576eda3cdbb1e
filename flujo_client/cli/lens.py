"""`flujo lens`: inspect runs, using only Postgres.

A run is named by its id, or by a unique prefix or suffix of it; the newest by `last`, `-1` or nothing. Commands that need the worker's code
join by entry points of the group `flujo.lens`.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime

import click
from pydantic import ValidationError

from flujo_client.api.client import FlujoClient
from flujo_client.cli.inputs import filter_options
from flujo_client.cli.json_output import explained, run_shape, span_shapes, stats_shape
from flujo_client.cli.lens_show import get_run, show_run
from flujo_client.cli.lens_watch import preview_option, watch_run
from flujo_client.cli.lookup import find_run, run_argument
from flujo_client.cli.options import flag, option
from flujo_client.cli.output import CommandResult, printed, say, show, show_rows, stdout
from flujo_client.cli.plugins import CommandGroup
from flujo_client.cli.render import trace_tree
from flujo_client.cli.spend import spend_of_run
from flujo_client.cli.tables import deleted_runs_table, evals_table, runs_table, sentence_lines, spans_table, stats_card
from flujo_client.cli.timeouts import looks, read, timeout_option
from flujo_client.contract.run_filter import EvalRecord, RunFilter, RunStats
from flujo_client.contract.trace import TraceNode
from flujo_client.errors import ClientError
from flujo_client.gateway import operator_requests, requests

WIDE = 140
"""The columns from which a terminal has room for whole ids beside the sentences about runs."""
PLACES = ("ready", "queued", "running", "paused", "parked", "succeeded", "failed", "cancelled", "expired")
"""The statuses of places, attempts and runs."""

_FULL = "Draw every branch, iteration and level; by default, long and deep parts are folded."
_full_option = flag("--full", "is_full", help=_FULL)


@click.group("lens", cls=CommandGroup, points="flujo.lens")
def command() -> None:
    """Look at runs."""


@command.command("list")
@filter_options()
@option("--parent", metavar="RUN", help="Only child runs of this run.")
@flag("--background", help="Only runs of background steps, with the run that launched each.")
@flag("--deleted", help="Only summaries of deleted runs, the last to end first.")
@option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@looks("Print a list of runs as JSON.")
def list_runs(
    client: FlujoClient, *, filters: RunFilter, parent: str | None, background: bool, deleted: bool, limit: int
) -> CommandResult:
    """List runs, newest first. A run that was retried is listed as failed only with --retried."""
    if deleted:
        if background:
            raise click.UsageError("--background cannot be given with --deleted: use --parent RUN, or leave it out")
        return _deleted_runs(client, filters, parent, limit)
    of = find_run(client, parent).id if parent else None
    runs = client.ask(requests.runs(replace(filters, parent=of, background=background or None), limit=limit))
    sentences = client.explain([run.id for run in runs])

    def draw() -> None:
        if not runs:
            say("no matching runs" if filters != RunFilter() or parent or background else "no runs yet")
            return
        options = {"parents": background, "is_narrow": _is_narrow(), "in_lines": not stdout.is_terminal}
        show_rows(runs_table(runs, datetime.now(UTC), sentences=sentences, **options))
        for run in runs:
            if run.unreadable is not None:
                say(f"run {run.id} is unreadable: {run.unreadable}")

    return CommandResult([explained(run_shape(run), sentences.get(run.id)) for run in runs], draw)


def _is_narrow() -> bool:
    return stdout.is_terminal and stdout.width < WIDE


def _deleted_runs(client: FlujoClient, filters: RunFilter, parent: str | None, limit: int) -> CommandResult:
    status, pipeline, tenant = filters.status, filters.pipeline, filters.tenant
    if filters != RunFilter(status=status, pipeline=pipeline, tenant=tenant):
        those = "--status, --pipeline, --tenant and --parent alone"
        raise click.UsageError(f"summaries of deleted runs are found by {those}")
    runs = client.list_deleted_runs(status=status, pipeline=pipeline, tenant=tenant, parent=parent, limit=limit)
    drawn = deleted_runs_table(runs, datetime.now(UTC), is_narrow=_is_narrow())
    nothing = "no summaries of deleted runs; `retention.keep_summaries` leaves them"
    return CommandResult([asdict(run) for run in runs], lambda: show_rows(drawn) if runs else say(nothing))


@command.command("stats")
@filter_options(since="24h", retried=False)
@timeout_option
@printed()
def stats(*, filters: RunFilter, timeout: float) -> CommandResult:
    """How did the runs of the last hours end, how long did they take, what did they cost, and where do they fail?"""
    request = operator_requests.stats(replace(filters, retried=True), timeout_s=timeout)
    found: RunStats = read(timeout, lambda client: client.ask(request))
    return CommandResult(stats_shape(found), lambda: show(stats_card(found)))


@command.command("evals")
@option("--run-id", metavar="RUN", help="Only this run, with its child runs.")
@option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@timeout_option
@printed()
def evals(*, run_id: str | None, limit: int, timeout: float) -> CommandResult:
    """How did validators, prechecks and evaluators judge the outputs, newest first?"""

    def ask(client: FlujoClient) -> list[EvalRecord]:
        run = find_run(client, run_id).id if run_id else None
        return client.ask(operator_requests.judgements(run=run, limit=limit, timeout_s=timeout))

    found = read(timeout, ask)
    shapes = [asdict(each) for each in found]
    return CommandResult(shapes, lambda: show_rows(evals_table(found)) if found else say("no judgements"))


@command.command("trace")
@run_argument
@preview_option
@_full_option
@looks("Print the whole tree as JSON.")
def trace_run(client: FlujoClient, *, run: str, preview: int, is_full: bool) -> CommandResult:
    """Show what happened, when, and how long it took."""
    handle = find_run(client, run)
    trace, sentence = handle.trace(), handle.explain()

    def draw() -> None:
        show(sentence_lines(sentence))
        show(trace_tree(trace, preview=preview, is_full=is_full))

    return CommandResult(trace.model_dump(), draw)


@command.command("spans")
@run_argument
@option("--status", type=click.Choice(PLACES), help="Only places with this status.")
@option("--name", metavar="TEXT", help="Only places whose name contains this.")
@looks("Print a list of places as JSON.")
def spans_run(client: FlujoClient, *, run: str, status: str | None, name: str | None) -> CommandResult:
    """List the places of a run's trace, one in a line: steps, containers, what runs in those, and attempts."""
    places = span_shapes(find_run(client, run).trace())
    spans = [each for each in places if status in (None, each["status"]) and (name or "") in each["name"]]
    nothing = "no matching places" if status or name else "no step has begun yet"
    return CommandResult(spans, lambda: show(spans_table(spans)) if spans else say(nothing))


@command.command("from-file")
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
        what = f"{path} does not contain a trace: {place}: {wrong['msg']}"
        way_out = "`flujo lens trace RUN --json` writes one"
        raise ClientError(what, suggestion=way_out, code="NO_TRACE") from None
    show(trace_tree(trace, preview=preview, is_full=is_full))


for each in (show_run, get_run, spend_of_run, watch_run):
    command.add_command(each)
