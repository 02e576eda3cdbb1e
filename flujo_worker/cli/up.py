"""`flujo up`: everything on this machine, supervised: services, tables, workers and a beat.

A worker or a beat that dies is replaced. An embedded service is not: what Redis held is gone, and a Postgres that ends by itself wants a
look, so all is stopped, as by a runner of Procfiles.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flujo_client.cli.format import counted
from flujo_client.cli.output import OK, RUNTIME, say
from flujo_client.config.manager import ConfigManager
from flujo_client.embedded.local import Fleet, migrate, open_services

if TYPE_CHECKING:
    from flujo_client.embedded import Embedded

LOOK_EVERY_S = 1.0
LOG = "workers.log"


@click.command("up")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes.")
def command(*, workers: int) -> int:
    """Start embedded services where none are set, migrate, and keep worker processes and a beat running until interrupted."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    settings, services = open_services(ConfigManager().settings())
    try:
        migrate(settings)
        log = Path(settings.embedded_dir) / LOG if services is not None else None
        beat = Fleet(settings, log=log, command="beat")
        with Fleet(settings, processes=workers, log=log) as fleet, beat:
            say(f"postgres  {settings.database_url}")
            say(f"redis     {settings.broker_url}")
            say(f"workers   {workers} and a beat" + (f", logging to {log}" if log else ""))
            if services is not None and not services.is_owner:
                say(
                    f"the services of this folder already run under process {services.owner_pid}; this adds workers and a beat"
                )
            say(
                "up; Ctrl-C stops everything"
                if services is None or services.is_owner
                else "up; Ctrl-C stops what this command added"
            )
            code = _supervise(stopping, services, fleet, beat)
        if code == OK:
            say("stopped; runs continue with the next worker")
        return code
    finally:
        if services is not None:
            services.stop()


def _supervise(stopping: threading.Event, services: Embedded | None, fleet: Fleet, beat: Fleet) -> int:
    """Look after all of it until it is to stop, or a service has ended; gives the exit code."""
    while not stopping.wait(LOOK_EVERY_S):
        if services is not None and (ended := services.how_they_ended()):
            say(
                f"{ended}\nstopping the workers; `flujo up` starts everything again, and runs continue from where they were"
            )
            return RUNTIME
        if dead := fleet.mend():
            say(f"{counted(dead, 'worker process')} ended and {'was' if dead == 1 else 'were'} replaced")
        if beat.mend():
            say("the beat died and was replaced")
    return OK
