"""Hand back attempts that have not ended when a worker stops: it interrupts and releases them, and others begin them at once.

Code that can be cancelled has ended before its attempt is released. Other code, such as a plain function in a thread, runs concurrently
with its repetition until the process ends; the fence rejects its result. In: the attempts of this worker. Out: their messages.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import time
from typing import TYPE_CHECKING

from flujo_worker.errors import RETIRED, DispatchError, StoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import NoReturn

    from flujo_worker.attempts.lease import Lease
    from flujo_worker.ports import Publisher, Tree

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.02
MOST_DESCRIPTORS = 1 << 20


class HandBack:
    """Releases what this process works on, after the seconds that interrupted code may take to end."""

    def __init__(self, lease: Lease, tree: Tree, post: Publisher, *, grace_s: float) -> None:
        self._lease, self._tree, self._post, self._grace_s = lease, tree, post, grace_s

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
                self._post.send(self._tree.envelopes(keys))
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
        arguments = [sys.executable, "-m", "flujo_worker.processes.hand_back", worker, *keys]
        os.execve(sys.executable, arguments, {**environment, "PYTHONPATH": os.pathsep.join(sys.path)})  # noqa: S606 - our own module
    finally:
        os._exit(RETIRED)
