"""`flujo lens`: inspect runs, using only Postgres.

A run is named by its id, or by a unique prefix or suffix of it; the newest by `last`, `-1` or nothing. Commands that need the worker's code
join by entry points of the group `flujo.lens`.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime

import click

from flujo_client.api.client import FlujoClient
from flujo_client.cli.json_output import run_shape
from flujo_client.cli.lens_evals import evals
from flujo_client.cli.lens_show import get_run, show_run
from flujo_client.cli.lens_stats import stats
from flujo_client.cli.lens_trace import draw_file, spans_run, trace_run
from flujo_client.cli.lens_watch import watch_run
from flujo_client.cli.lookup import find_run
from flujo_client.cli.output import say, show_json, show_rows, stdout
from flujo_client.cli.plugins import ExtensibleGroup
from flujo_client.cli.run_filters import filter_options
from flujo_client.cli.tables import deleted_runs_table, runs_table
from flujo_client.cli.timeouts import read, timeout_option
from flujo_client.contract.records import RunRecord
from flujo_client.contract.run_filter import RunFilter
from flujo_client.gateway import requests

WIDE = 100
"""A terminal of so many columns has room for whole ids."""


class _Lens(ExtensibleGroup):
    points = "flujo.lens"


@click.group("lens", cls=_Lens)
def command() -> None:
    """Look at runs."""


@command.command("list")
@filter_options()
@click.option("--parent", metavar="RUN", help="Only child runs of this run.")
@click.option("--background", is_flag=True, help="Only runs of background steps, with the run that launched each.")
@click.option("--deleted", is_flag=True, help="Only summaries of deleted runs, the last to end first.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of runs as JSON.")
def list_runs(
    *,
    filters: RunFilter,
    parent: str | None,
    background: bool,
    deleted: bool,
    limit: int,
    timeout: float,
    as_json: bool,
) -> None:
    """List runs, newest first. A run that was retried is listed as failed only with --retried."""
    if deleted:
        if background:
            raise click.UsageError("--background cannot be given with --deleted: use --parent RUN, or leave it out")
        _list_deleted(filters, parent, limit=limit, timeout=timeout, as_json=as_json)
        return

    def ask(client: FlujoClient) -> list[RunRecord]:
        of = find_run(client, parent).id if parent else None
        return client.ask(requests.runs(replace(filters, parent=of, background=background or None), limit=limit))

    runs = read(timeout, ask)
    if as_json:
        show_json([run_shape(run) for run in runs])
    elif runs:
        show_rows(runs_table(runs, datetime.now(UTC), parents=background, is_narrow=_is_narrow()))
        for run in runs:
            if run.unreadable is not None:
                say(f"run {run.id} is unreadable: {run.unreadable}")
    else:
        say("no matching runs" if filters != RunFilter() or parent or background else "no runs yet")


def _is_narrow() -> bool:
    return stdout.is_terminal and stdout.width < WIDE


def _list_deleted(filters: RunFilter, parent: str | None, *, limit: int, timeout: float, as_json: bool) -> None:
    status, pipeline, tenant = filters.status, filters.pipeline, filters.tenant
    if filters != RunFilter(status=status, pipeline=pipeline, tenant=tenant):
        raise click.UsageError(
            "summaries of deleted runs are found by --status, --pipeline, --tenant and --parent alone"
        )
    runs = read(
        timeout,
        lambda client: client.list_deleted_runs(
            status=status, pipeline=pipeline, tenant=tenant, parent=parent, limit=limit
        ),
    )
    if as_json:
        show_json([asdict(run) for run in runs])
    elif runs:
        show_rows(deleted_runs_table(runs, datetime.now(UTC), is_narrow=_is_narrow()))
    else:
        say("no summaries of deleted runs; `retention.keep_summaries` leaves them")


for each in (show_run, get_run, trace_run, spans_run, draw_file, stats, evals, watch_run):
    command.add_command(each)
