"""`flujo lens`: look at runs, on what Postgres holds alone.

A run is named by its id, or by as much of its beginning or end as no other run shares; the newest by `last`, `-1` or nothing. What takes the worker's code to look at joins by entry points of the group `flujo.lens`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from flujo_client.cli.json_output import run_shape
from flujo_client.cli.lens_show import get_run, show_run
from flujo_client.cli.lens_stats import stats
from flujo_client.cli.lens_trace import draw_file, spans_run, trace_run
from flujo_client.cli.lens_watch import watch_run
from flujo_client.cli.lookup import find_run
from flujo_client.cli.output import say, show_json, show_rows, stdout
from flujo_client.cli.plugins import ExtensibleGroup
from flujo_client.cli.tables import runs_table
from flujo_client.cli.timeouts import read, timeout_option
from flujo_client.contract.records import RUN_STATUSES

if TYPE_CHECKING:
    from flujo_client.api.client import FlujoClient
    from flujo_client.contract.records import RunRecord

WIDE = 100
"""A terminal of so many columns has room for whole ids."""


class _Lens(ExtensibleGroup):
    points = "flujo.lens"


@click.group("lens", cls=_Lens)
def command() -> None:
    """Look at runs."""


@command.command("list")
@click.option("--status", type=click.Choice(RUN_STATUSES), help="Only runs with this status.")
@click.option("--pipeline", metavar="NAME", help="Only runs of this pipeline: its name or its reference.")
@click.option("--parent", metavar="RUN", help="Only child runs of this run.")
@click.option("--background", is_flag=True, help="Only runs of background steps, with the run that launched each.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of runs as JSON.")
def list_runs(
    *,
    status: str | None,
    pipeline: str | None,
    parent: str | None,
    background: bool,
    limit: int,
    timeout: float,
    as_json: bool,
) -> None:
    """List runs, newest first."""

    def ask(client: FlujoClient) -> list[RunRecord]:
        of = find_run(client, parent).id if parent else None
        return client.list_runs(status=status, pipeline=pipeline, parent=of, background=background or None, limit=limit)

    runs = read(timeout, ask)
    if as_json:
        show_json([run_shape(run) for run in runs])
    elif runs:
        is_narrow = stdout.is_terminal and stdout.width < WIDE
        show_rows(runs_table(runs, datetime.now(UTC), parents=background, is_narrow=is_narrow))
    else:
        say("no matching runs" if status or pipeline or parent or background else "no runs yet")


for each in (show_run, get_run, trace_run, spans_run, draw_file, stats, watch_run):
    command.add_command(each)
