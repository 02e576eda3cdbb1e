"""What a broken worker process becomes: it hands back the attempts that the worker ran, and exits with `RETIRED`, to be replaced."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Final

from flujo_client.config.manager import ConfigManager
from flujo_client.transport.broker import Broker
from flujo_client.transport.encryption import encrypt_values
from flujo_worker.errors import RETIRED
from flujo_worker.observe.log import configure
from flujo_worker.store.postgres.store import PostgresStore

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 15
"""Seconds that Postgres and Redis may take. After that, others find that the process is gone."""


def main(worker: str, keys: Sequence[str]) -> None:
    """Hand back the attempts with these keys, which that worker ran or had taken, and end its lease."""
    settings, at_once = ConfigManager().settings(), threading.Event()
    at_once.set()
    configure(settings.log)
    encrypt_values(settings)
    store = PostgresStore(settings.database(), pool_max=1, prepare=settings.prepare_statements, stopping=at_once)
    store.open()
    moved = store.hand_back(worker, keys, is_broken=True)
    Broker(settings).publish(store.envelopes(moved))
    store.deregister_worker(worker)
    logger.warning("%d attempts of worker %s, which was broken, were handed back", len(moved), worker)


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, lambda *_: os._exit(RETIRED))
    signal.alarm(PATIENCE_S)
    try:
        main(sys.argv[1], sys.argv[2:])
    except Exception:
        logger.exception("the attempts of a broken worker were not handed back: others will find that it is gone")
    os._exit(RETIRED)
