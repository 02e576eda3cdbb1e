"""`flujo chaos`: a monkey breaks what real workers run on, and invariants are read from Postgres at the end."""

from __future__ import annotations

import logging
import secrets
from contextlib import ExitStack

import click

from flujo_client.cli.options import flag
from flujo_client.cli.output import OK, RUNTIME, say, show, show_json
from flujo_client.config.manager import ConfigManager
from flujo_worker.chaos.monkey import run_chaos
from flujo_worker.chaos.network_faults import lacking
from flujo_worker.chaos.report import recovery_table, summary, verdict_table, violations_text
from flujo_worker.chaos.site import SiteOptions, embedded_site, own_folder, staging_site

MOST_SECONDS = 86_400
WARNING = (
    "The monkey writes runs and two tables into this database, kills worker processes that it starts itself, and cuts their "
    "connections. Use a staging system, and repeat the command with --yes."
)


@click.command("chaos")
@click.option("--seed", type=int, help="Fixes the order of faults; drawn and printed by default.")
@click.option(
    "--duration", type=click.IntRange(1, MOST_SECONDS), default=60, show_default=True, help="Seconds of faults."
)
@click.option(
    "--quiet",
    type=click.IntRange(1, MOST_SECONDS),
    default=300,
    show_default=True,
    help="Seconds in which all must end afterwards.",
)
@click.option("--workers", type=click.IntRange(1, 64), default=3, show_default=True, help="Worker processes.")
@click.option(
    "--url",
    metavar="URL",
    envvar="FLUJO_CHAOS_URL",
    show_envvar=True,
    help="A staging Postgres, instead of an embedded one.",
)
@click.option("--broker", metavar="URL", envvar="FLUJO_CHAOS_BROKER", show_envvar=True, help="Its Redis.")
@flag("--network", help="Break the network between processes and embedded services as well: delays, partitions.")
@flag("--yes", help="Confirm that --url is a staging system.")
@flag("--json", "as_json", help="Print the report as JSON.")
def command(  # noqa: PLR0913 - one for each option
    *,
    seed: int | None,
    duration: int,
    quiet: int,
    workers: int,
    url: str | None,
    broker: str | None,
    network: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Break embedded services and workers at random while runs are under way, wait until all have ended, and check every promise.

    Needs nothing running, and leaves nothing running. The exit code is 1 if an invariant is violated.
    """
    if (url is None) != (broker is None):
        raise click.UsageError("--url and --broker must be given together")
    if url is not None and network:
        raise click.UsageError("--network needs embedded services: leave out --url and --broker")
    if url is not None and not yes:
        raise click.UsageError(WARNING)
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    settings = ConfigManager().settings()
    logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())  # lost connections are what this is about
    is_kept: list[bool] = []
    say(f"seed {seed}: starting {workers} workers" + ("" if url else ", Postgres and Redis"))
    for reason in lacking() if network else []:
        say(reason)
    with ExitStack() as stack:
        folder = stack.enter_context(own_folder(is_kept=is_kept))
        options = SiteOptions(f"{seed}-{secrets.token_hex(4)}", workers, folder, has_network=network)
        if url is not None and broker is not None:
            site = stack.enter_context(staging_site(settings.with_services(url, broker), options))
        else:
            site = stack.enter_context(embedded_site(settings, options))
        report = run_chaos(site, seed=seed, seconds=duration, quiet_s=quiet, watch=say)
        if report.violations:
            is_kept.append(True)
        else:
            site.rows("drop_ledger")
    if as_json:
        show_json(report.tree())
    else:
        for draw in (summary, recovery_table, verdict_table):
            show(draw(report))
    if not report.violations:
        return OK
    say(violations_text(report))
    say(f"{report.violations} violations; logs and data are in {folder}. Repeat with --seed {seed}.")
    return RUNTIME
