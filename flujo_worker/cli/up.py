"""`flujo up`: run and supervise everything on this machine: services, tables, workers and a beat.

A worker or a beat that dies is replaced. An embedded service is not: the data of Redis is gone, and an unexpected end of Postgres needs
attention, so everything is stopped, as by a runner of Procfiles.
"""

from __future__ import annotations

import signal
import threading
from contextlib import nullcontext, suppress
from pathlib import Path

import click

from flujo_client.api.client import FlujoClient
from flujo_client.cli.format import counted
from flujo_client.cli.options import flag
from flujo_client.cli.output import OK, RUNTIME, say
from flujo_client.cli.ui import page_beside
from flujo_client.cli.watching import CODE, WATCH, WatchedFiles
from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.embedded import Embedded
from flujo_client.embedded.local import LOG, Fleet, migrate, open_services
from flujo_client.errors import ServiceUnreachable
from flujo_client.gateway import requests

LOOK_EVERY_S = 0.5


@click.command("up")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes.")
@click.option(
    "--ui/--no-ui",
    "with_ui",
    default=True,
    envvar="FLUJO_UI",
    help="Serve the page, if `flujo-worker[ui]` is installed.",
)
@flag(WATCH, "is_watching", help="Restart the workers whenever code in this folder changes.")
def command(*, workers: int, with_ui: bool, is_watching: bool) -> int:
    """Start embedded services where none are set, migrate, and keep worker processes and a beat running until interrupted."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    files = WatchedFiles(Path.cwd(), CODE) if is_watching else None
    settings, services = open_services(ConfigManager().settings())
    try:
        migrate(settings)
        log = Path(settings.embedded_dir) / LOG if services is not None else None
        beat = Fleet(settings, log=log, command="beat")
        page = page_beside(settings) if with_ui else nullcontext()
        with Fleet(settings, processes=workers, log=log) as fleet, beat, page as address:
            say(f"postgres  {settings.database_url}")
            say(f"redis     {settings.broker_url}")
            say(f"workers   {workers} and a beat, logging to {log or 'stdout'}")
            if address is not None:
                say(f"page      {address}")
            owner = services.owner_pid if services is not None and not services.is_owner else None
            if owner is not None:
                say(f"the services of this folder already run under process {owner}; this adds workers and a beat")
            if files is not None:
                say(f"watching  {counted(len(files), 'file')}")
            up = f"up; Ctrl-C stops {'everything' if owner is None else 'what this command added'}"
            code = _supervise(stopping, settings, services, (fleet, beat), files, up)
        if code == OK:
            say("stopped; runs continue with the next worker")
        return code
    finally:
        if services is not None:
            services.stop()


def _supervise(
    stopping: threading.Event,
    settings: Settings,
    services: Embedded | None,
    fleets: tuple[Fleet, Fleet],
    files: WatchedFiles | None,
    up: str,
) -> int:
    """Supervise all processes until they are to stop, or a service has ended; return the exit code. Say `up` once a worker takes messages."""
    (fleet, beat), is_up = fleets, False
    while not stopping.wait(LOOK_EVERY_S):
        if services is not None and (ended := services.how_they_ended()):
            next_start = "`flujo up` starts everything again, and runs continue from where they were"
            say(f"{ended}\nstopping the workers; {next_start}")
            return RUNTIME
        if not is_up and (is_up := _takes_messages(settings, fleet)):
            say(up)
        if files is not None and (changed := files.changes()):
            say(f"changed: {changed}; restarting the workers")
            fleet.renew()
        if dead := fleet.replace_dead():
            say(f"{counted(dead, 'worker process')} ended and {'was' if dead == 1 else 'were'} replaced")
        if beat.replace_dead():
            say("the beat died and was replaced")
    return OK


def _takes_messages(settings: Settings, fleet: Fleet) -> bool:
    """Return whether a worker of a fleet is up; no where Postgres does not answer, which is waited for."""
    ours = {process.pid for process in fleet.processes}
    with suppress(ServiceUnreachable), FlujoClient(settings) as client:
        return any(each.is_live and each.pid in ours for each in client.ask(requests.workers()))
    return False
