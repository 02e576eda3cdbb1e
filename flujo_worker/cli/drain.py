"""`flujo worker --drain`: ask workers to stop in order, wherever they run, and wait until they have."""

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import closing

from flujo_client.cli.format import counted
from flujo_client.cli.output import OK, RUNTIME, say
from flujo_client.config.manager import Settings
from flujo_client.embedded.local import join_services
from flujo_client.errors import ServiceUnreachable
from flujo_worker.errors import StoreError
from flujo_worker.store.postgres.pool import RetryingPool
from flujo_worker.store.postgres.stop_requests import StopRequests

LOOK_EVERY_S = 0.2
MARGIN_S = 30.0
"""Seconds in addition to its grace times that a worker may need to notice the request and to end."""


def drain(settings: Settings, names: Sequence[str]) -> int:
    """Ask workers to stop, by id or host, those of this host without names; return the exit code once they have, or should have."""
    settings = join_services(settings)
    names, at_once = names or [socket.gethostname()], threading.Event()
    at_once.set()
    seconds = settings.worker.shutdown_grace_s + settings.agents.cancel_grace_s + MARGIN_S
    try:
        with closing(RetryingPool(settings.database(), pool_max=1, stopping=at_once)) as pool:
            return _drain(StopRequests(pool.open()), names, seconds)
    except StoreError as error:
        raise ServiceUnreachable(f"Postgres does not answer: {error}", cause=error) from error


def _drain(workers: StopRequests, names: Sequence[str], seconds: float) -> int:
    requested = workers.request(names)
    if not requested:
        say(f"no worker is alive on {', '.join(names)}; `flujo status --json` lists hosts and ids")
        return RUNTIME
    say(f"asked {counted(len(requested), 'worker')} to stop: {', '.join(requested)}")
    until = time.monotonic() + seconds
    while left := workers.still_alive(requested):
        if time.monotonic() > until:
            say(f"not within {seconds:g} s: {', '.join(left)}")
            return RUNTIME
        time.sleep(LOOK_EVERY_S)
    say("stopped; their attempts have ended or were handed back")
    return OK
