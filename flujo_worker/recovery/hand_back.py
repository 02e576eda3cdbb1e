"""Hand back attempts that have not ended when a worker stops: it interrupts and releases them, and others begin them at once.

Code that can be cancelled has ended before its attempt is released. Other code, such as a plain function in a thread, runs concurrently
with its repetition until the process ends; the fence rejects its result. In: the attempts of this worker. Out: their messages.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING

from flujo_worker.errors import RETIRED, DispatchError, StoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import NoReturn

    from flujo_worker.attempts.lease import Lease
    from flujo_worker.ports import BacklogStore, Publisher

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.02
MOST_DESCRIPTORS = 1 << 20
PATIENCE_S = 15
"""Seconds that a broken process gives Postgres and Redis. After that, others find that the process is gone."""


class HandBack:
    """Releases what this process works on, after the seconds that interrupted code may take to end."""

    def __init__(self, lease: Lease, backlog: BacklogStore, post: Publisher, *, grace_s: float) -> None:
        self._lease, self._backlog, self._post, self._grace_s = lease, backlog, post, grace_s

    def run(self, at_least_s: float = 0.0) -> None:
        """Interrupt all that runs, release each attempt as it ends, and after the grace time, or `at_least_s`, the others too."""
        self._lease.interrupt()
        until = time.monotonic() + max(self._grace_s, at_least_s)
        while not self._lease.is_idle and time.monotonic() < until:
            self._publish(everything=False)
            time.sleep(LOOK_EVERY_S)
        self._publish(everything=True)
        self._lease.drop()

    def _publish(self, *, everything: bool) -> None:
        try:
            keys = self._lease.hand_back(everything=everything)
            if keys:
                self._post.send(self._backlog.envelopes(keys))
        except (StoreError, DispatchError) as error:
            logger.warning("attempts are left to the sweeper: %s", error)
            return
        for key in sorted(keys):
            logger.info("attempt %s handed back%s", key, ", although its code is still running" if everything else "")


def become_hand_back(worker: str, keys: Collection[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace the program of this process, which is broken, by one that hands back these attempts and exits with `RETIRED`.

    The threads end at once, and with them the code that broke the process. The new program has whole descriptors, modules as they are
    installed, and the pid that the parent waits for.
    """
    try:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        os.closerange(3, MOST_DESCRIPTORS)
        arguments = [sys.executable, "-m", "flujo_worker.recovery.hand_back", worker, *keys]
        os.execve(sys.executable, arguments, {**environment, "PYTHONPATH": os.pathsep.join(sys.path)})  # noqa: S606 - our own module
    finally:
        os._exit(RETIRED)


def main(worker: str, keys: Sequence[str]) -> None:
    """Hand back the attempts with these keys, which a broken worker ran or had taken, and end its lease."""
    from flujo_client.config.manager import ConfigManager
    from flujo_client.transport.brokers import broker_for
    from flujo_client.transport.encryption import encrypt_values
    from flujo_worker.observe.log import configure
    from flujo_worker.store.postgres.stores import PostgresStores

    settings = ConfigManager().settings()
    configure(settings.log)
    encrypt_values(settings)
    stores = PostgresStores(settings.database(), pool_max=1, prepare=settings.prepare_statements)
    stores.open()
    moved = stores.leases.hand_back(worker, keys, is_broken=True)
    broker_for(settings).publish(stores.backlog.envelopes(moved))
    stores.leases.deregister_worker(worker)
    logger.warning("%d attempts of worker %s, which was broken, were handed back", len(moved), worker)


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, lambda *_: os._exit(RETIRED))
    signal.alarm(PATIENCE_S)
    try:
        main(sys.argv[1], sys.argv[2:])
    except Exception:
        logger.exception("the attempts of a broken worker were not handed back: others will find that it is gone")
    os._exit(RETIRED)
