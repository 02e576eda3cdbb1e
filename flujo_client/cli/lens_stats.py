"""`flujo lens stats`: the outcomes of the runs of the last hours. Postgres counts; nothing is sampled."""

from __future__ import annotations

from dataclasses import replace

import click

from flujo_client.cli.json_output import stats_shape
from flujo_client.cli.output import show, show_json
from flujo_client.cli.run_filters import filter_options
from flujo_client.cli.tables import stats_card
from flujo_client.cli.timeouts import read, timeout_option
from flujo_client.contract.run_filter import RunFilter
from flujo_client.contract.stats import RunStats
from flujo_client.gateway import stats as requests


@click.command("stats")
@filter_options(since="24h", retried=False)
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def stats(*, filters: RunFilter, timeout: float, as_json: bool) -> None:
    """How did the runs of the last hours end, how long did they take, what did they cost, and where do they fail?"""
    request = requests.stats(replace(filters, retried=True), timeout_s=timeout)
    found: RunStats = read(timeout, lambda client: client.ask(request))
    if as_json:
        show_json(stats_shape(found))
    else:
        show(stats_card(found))
