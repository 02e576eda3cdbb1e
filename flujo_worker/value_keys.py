"""What this process can decrypt (ADR 48). A worker that lacks a key of what it claimed takes no more work, and says which.

Whether another secret is behind a key's id is decided by its canary, and where that does not fit, by the newest value under that id: a worker
with a wrong secret may have been the first one. In: the keys of this process. Out: the ids of those that it lacks.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from flujo_client.contract.outcome import Event
from flujo_client.errors import KeyMissing
from flujo_client.serial import Packed, cipher_in_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from flujo_worker.ports import Canaries

logger = logging.getLogger(__name__)

_CANARY: Final = "canary"


class ValueKeys:
    """Knows which keys this process lacks. It never gets one: keys are read when a process starts. Thread-safe.

    Args:
        store: where the canaries are.
        report: takes the event `worker.lacks_key`.
        withdraw: takes no more messages.
    """

    def __init__(self, store: Canaries, report: Callable[[Event], object], withdraw: Callable[[], object]) -> None:
        self._store, self._report, self._withdraw = store, report, withdraw
        self._lacking: set[str] = set()
        self._lock = threading.Lock()

    @property
    def is_lacking(self) -> bool:
        """Return whether this process must claim nothing more."""
        return bool(self._lacking)

    def check(self) -> None:
        """Compare the secrets of this process with the canaries; record that of the key it encrypts with, if there is none."""
        cipher = cipher_in_use()
        if cipher is None:
            return
        canaries = self._store.canaries()
        for key_id in cipher.key_ids:
            canary = canaries.get(key_id)
            if canary is not None and _is_readable(canary):
                continue
            newest = self._store.newest_encrypted(key_id)
            if not (canary is None if newest is None else _is_readable(newest)):
                self._lack(key_id, "has another secret than the other processes for")
            elif key_id == cipher.key_ids[0]:
                self._store.write_canary(key_id, Packed.of(_CANARY))

    def lacks(self, error: KeyMissing) -> bool:
        """Return whether the key of a value that could not be decrypted is not here; False: the value itself was changed."""
        cipher = cipher_in_use()
        if cipher is None or error.key_id not in cipher.key_ids:
            self._lack(error.key_id, "lacks")
        else:
            self.check()
        return error.key_id in self._lacking

    def _lack(self, key_id: str, how: str) -> None:
        with self._lock:
            is_new = key_id not in self._lacking
            self._lacking.add(key_id)
            keys = sorted(self._lacking)
        if is_new:
            logger.error(
                "this worker %s the value key '%s': it takes no more work until it is started with it", how, key_id
            )
            self._report(Event("worker.lacks_key", {"keys": keys}, "error", at=time.time()))
            self._withdraw()


def _is_readable(value: Packed) -> bool:
    try:
        value.json()
    except KeyMissing:
        return False
    return True
