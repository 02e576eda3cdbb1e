"""`flujo lens stats`: the outcomes of the runs of the last hours. Postgres counts; nothing is sampled."""

from __future__ import annotations

import click

from flujo_client.cli.json_output import stats_shape
from flujo_client.cli.numbers import hours
from flujo_client.cli.output import show, show_json
from flujo_client.cli.tables import stats_card
from flujo_client.cli.timeouts import read, timeout_option
from flujo_client.contract.stats import RunStats
from flujo_client.gateway import stats as requests

DAY_H = 24.0


@click.command("stats")
@click.option("--pipeline", metavar="NAME", help="Only runs of this pipeline: its name or its reference.")
@click.option(
    "--hours",
    "window",
    metavar="HOURS",
    type=hours(),
    default=DAY_H,
    show_default=True,
    help="Only runs that were enqueued within this window.",
)
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def stats(*, pipeline: str | None, window: float, timeout: float, as_json: bool) -> None:
    """How did the runs of the last hours end, how long did they take, what did they cost, and where do they fail?"""
    request = requests.stats(hours=window, pipeline=pipeline, timeout_s=timeout)
    found: RunStats = read(timeout, lambda client: client.ask(request))
    if as_json:
        show_json(stats_shape(found))
    else:
        show(stats_card(found))
