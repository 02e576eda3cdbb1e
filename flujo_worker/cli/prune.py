"""`flujo runs prune`: delete ended runs by their age, now."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Final

import click

from flujo_client.cli.options import flag
from flujo_client.cli.output import CommandResult, printed, say
from flujo_client.config.manager import ConfigManager
from flujo_client.embedded.local import join_services
from flujo_worker.domain.retention import DAY_S, STATUSES, RetentionRule
from flujo_worker.store.migrate import require_current
from flujo_worker.store.postgres.stores import PostgresStores
from flujo_worker.store.postgres.upkeep import RetentionInPostgres

AT_ONCE: Final = 100
REPORT_EVERY_S: Final = 2.0
_SECONDS: Final = {"h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


def _age(_: click.Context, __: click.Parameter, given: str) -> float:
    """Read a number of hours, days or weeks as seconds. Less than an hour is refused: a worker may still be writing events of the run."""
    found = re.fullmatch(r"([1-9]\d{0,4})([hdw])", given)
    if found is None:
        raise click.BadParameter(f"'{given}' is not a number of hours, days or weeks such as 12h, 30d or 8w")
    return int(found[1]) * _SECONDS[found[2]]


@click.command("prune")
@click.option(
    "--older-than", callback=_age, required=True, metavar="AGE", help="How long ago they ended: 12h, 30d, 8w."
)
@click.option("--status", "statuses", type=click.Choice(STATUSES), multiple=True, help="Only runs that ended so.")
@click.option("--pipeline", metavar="NAME", help="Only runs of the pipeline with this name.")
@flag("--dry-run", help="Show how many would be deleted, and delete nothing.")
@printed("Print the numbers as JSON.")
def command(*, older_than: float, statuses: Sequence[str], pipeline: str | None, dry_run: bool) -> CommandResult:
    """Delete ended runs, with all their data and all their child runs. Live runs stay, and so do their parents.

    With `retention.keep_summaries`, a summary of each stays. It is safe under running workers, and may be interrupted and repeated.
    """
    rules = [RetentionRule(status, older_than, pipeline) for status in statuses or STATUSES]
    settings = join_services(ConfigManager().settings())
    require_current(settings.database())
    waits_s, keeps = settings.traces.wait_days * DAY_S, settings.retention.keep_summaries
    with closing(PostgresStores(settings.database(), pool_max=1).open()) as stores:
        found = RetentionInPostgres(stores.pool).count_aged_runs(rules, waits_s=waits_s)
        prune = partial(stores.retention.prune_runs, rules, AT_ONCE, is_summarized=keeps, waits_s=waits_s)
        total, gone, reported_at = sum(found.values()), 0, time.monotonic()
        while not dry_run and (pruned := prune()):
            gone += len(pruned)
            if time.monotonic() - reported_at > REPORT_EVERY_S:
                reported_at = time.monotonic()
                say(f"deleted {gone} of {total} or more")

    def draw() -> None:
        for (name, status), runs in found.items():
            say(f"{name}  {status}  {runs}")
        say(f"would delete {total} runs with their child runs" if dry_run else f"deleted {gone} runs")

    counted = [{"pipeline": name, "status": status, "runs": runs} for (name, status), runs in found.items()]
    return CommandResult({"found": counted, "deleted": gone}, draw)
