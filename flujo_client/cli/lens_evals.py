"""`flujo lens evals`: how the outputs of runs were judged. Only what runs have recorded is read; nothing is judged again."""

from __future__ import annotations

from dataclasses import asdict

import click

from flujo_client.api.client import FlujoClient
from flujo_client.cli.lookup import find_run
from flujo_client.cli.output import say, show_json, show_rows
from flujo_client.cli.tables import evals_table
from flujo_client.cli.timeouts import read, timeout_option
from flujo_client.contract.stats import EvalRecord
from flujo_client.gateway import stats as requests


@click.command("evals")
@click.option("--run-id", metavar="RUN", help="Only this run, with its child runs.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def evals(*, run_id: str | None, limit: int, timeout: float, as_json: bool) -> None:
    """How did validators, prechecks and evaluators judge the outputs, newest first?"""

    def ask(client: FlujoClient) -> list[EvalRecord]:
        run = find_run(client, run_id).id if run_id else None
        return client.ask(requests.judgements(run=run, limit=limit, timeout_s=timeout))

    found = read(timeout, ask)
    if as_json:
        show_json([asdict(each) for each in found])
    elif found:
        show_rows(evals_table(found))
    else:
        say("no judgements")
