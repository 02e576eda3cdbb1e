"""Blobs that this process has stored or read lately: what one attempt leaves, the next one here need not fetch.

A blob is known by its digest and never changes, so nothing here can be out of date. Bounded by the bytes of what is stored; a value
that was read keeps its JSON besides.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from flujo_client.serial import Packed

MOST_BYTES = 16 * 1024 * 1024


class Recent:
    """The least recently used is forgotten first. Safe for several threads.

    Args:
        most: bytes that may be kept.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most, self._size = most, 0
        self._blobs: OrderedDict[str, Packed] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, blobs: Iterable[Packed]) -> None:
        """Remember blobs; one larger than a quarter of all is not worth the others."""
        with self._lock:
            for blob in blobs:
                if blob.size > self._most // 4 or blob.digest in self._blobs:
                    continue
                self._blobs[blob.digest] = blob
                self._size += blob.size
                while self._size > self._most:
                    _, forgotten = self._blobs.popitem(last=False)
                    self._size -= forgotten.size

    def find(self, digests: Collection[str]) -> dict[str, Packed]:
        """Give those that are remembered."""
        with self._lock:
            found = {digest: self._blobs[digest] for digest in digests if digest in self._blobs}
            for digest in found:
                self._blobs.move_to_end(digest)
            return found
