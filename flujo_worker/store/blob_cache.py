"""Blobs that this process has stored or read lately: what one attempt leaves, the next one here need not fetch.

A blob is known by its digest and never changes, so nothing here can be out of date. Bounded by the bytes that are held: what is stored
and, where that is compressed, its JSON. A part that several values share is held once, as long as one of them is.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from flujo_client.serial import part_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from flujo_client.serial import Packed

MOST_BYTES = 32 * 1024 * 1024


class Recent:
    """The least recently used is forgotten first. Safe for several threads.

    Args:
        most: bytes that may be kept.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most, self._size = most, 0
        self._blobs: OrderedDict[str, Packed] = OrderedDict()
        self._parts: dict[str, Packed] = {}
        self._uses: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, blobs: Iterable[Packed]) -> None:
        """Remember blobs; one larger than a quarter of all is not worth the others."""
        with self._lock:
            for blob in blobs:
                if blob.digest in self._blobs or sum(map(_weight, blob.parts or (blob,))) > self._most // 4:
                    continue
                self._blobs[blob.digest] = blob
                self._hold(blob)
                while self._size > self._most:
                    self._let_go(self._blobs.popitem(last=False)[1])

    def find(self, digests: Collection[str]) -> dict[str, Packed]:
        """Give those that are remembered."""
        with self._lock:
            found = {digest: self._blobs[digest] for digest in digests if digest in self._blobs}
            for digest in found:
                self._blobs.move_to_end(digest)
            return found

    def find_parts(self, keys: Collection[str]) -> dict[str, Packed]:
        """Give what remembered blobs have as parts, by the key that it is stored under."""
        with self._lock:
            return {key: self._parts[key] for key in keys if key in self._parts}

    def _hold(self, blob: Packed) -> None:
        if not blob.parts:
            self._size += _weight(blob)
        for key, part in _parts(blob):
            if not self._uses[key]:
                self._parts[key] = part
                self._size += _weight(part)
            self._uses[key] += 1

    def _let_go(self, blob: Packed) -> None:
        if not blob.parts:
            self._size -= _weight(blob)
        for key, _ in _parts(blob):
            self._uses[key] -= 1
            if not self._uses[key]:
                del self._uses[key]
                self._size -= _weight(self._parts.pop(key))


def _parts(blob: Packed) -> Iterator[tuple[str, Packed]]:
    return ((part_key(part), part) for part in blob.parts)


def _weight(blob: Packed) -> int:
    return max(blob.size, blob.length) + min(blob.size, blob.length) * (blob.size < blob.length)
