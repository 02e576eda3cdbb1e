"""`flujo migrate`: migrate the database to this code's schema."""

import click

from flujo_client.cli.options import Real, flag
from flujo_client.cli.output import CommandResult, printed, say
from flujo_client.cli.timeouts import LONGEST_S
from flujo_client.config.manager import ConfigManager
from flujo_client.embedded.local import join_services
from flujo_worker.store.migrate import LOCKS_S, migrate
from flujo_worker.store.roles import PREFIX


@click.command("migrate")
@flag("--ignore-workers", help="Also apply migrations that live workers are too old for.")
@click.option(
    "--roles",
    metavar="[PREFIX]",
    is_flag=False,
    flag_value=PREFIX,
    help=f"Also create roles with the least rights, or update them; their names begin with PREFIX, '{PREFIX}' by default.",
)
@click.option(
    "--lock-timeout",
    "patience_s",
    metavar="SECONDS",
    type=Real(min=0, max=LONGEST_S),
    default=LOCKS_S,
    show_default=True,
    help="How long to try again while other sessions hold locks on the tables.",
)
@printed("Print what was applied as JSON.")
def command(*, ignore_workers: bool, roles: str | None, patience_s: float) -> CommandResult:
    """Migrate the database to this code's schema. Safe to run from many processes at once, and under running workers."""
    settings = join_services(ConfigManager().settings())
    done = migrate(settings.database(), ignore_workers=ignore_workers, roles=roles, patience_s=patience_s, on_wait=say)
    if done.waiting:
        names, workers = ", ".join(map(str, done.waiting)), ", ".join(done.workers)
        say(f"{names} waits until older workers have stopped: {workers}. Restart them, then run `flujo migrate` again.")

    def draw() -> None:
        for each in done.applied:
            say(f"applied {each}")
        if done.roles:
            say(f"granted {', '.join(done.roles)}")
        elif not done.applied and not done.waiting:
            say("nothing to do")

    return CommandResult([{"version": each.version, "name": each.name} for each in done.applied], draw)
