"""Detect the end of other worker processes of this machine at once, not seconds later by their leases.

It must never declare a process dead that may be alive: one of another machine or container, or whose pid is in use again, is left to its
lease. In: the live workers in the store; out: the end of those whose process is gone (ADR 10).
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

from flujo_worker.ports import LeaseStore

logger = logging.getLogger(__name__)

_BOOT, _PIDS = "/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"


def machine() -> str:
    """Return an id of the place in which pids mean the same: this boot of this machine, and this container. Empty where that is unknown."""
    try:
        place = Path(_BOOT).read_text(encoding="ascii") + str(Path(_PIDS).readlink())
    except OSError:
        return ""
    return hashlib.sha256(place.encode()).hexdigest()[:8]


class Neighbours:
    """The other worker processes of this machine; `place`, the result of `machine`, is in their ids."""

    def __init__(self, leases: LeaseStore, host: str, place: str, *, max_lost: int) -> None:
        self._leases, self._host, self._place, self._max_lost = leases, host, place, max_lost

    def bury(self) -> None:
        """End the leases of those whose process is gone; what they ran is sent again at once."""
        if not self._place:
            return
        for worker, pid in self._leases.neighbours(self._host):
            if f"-{self._place}-" in worker and _is_gone(pid):
                freed = len(self._leases.bury(worker, self._max_lost))
                logger.warning("the process of worker %s is gone; %d of its attempts are sent again", worker, freed)


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return False
