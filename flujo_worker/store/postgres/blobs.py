"""Large values in Postgres: each under its digest, those in parts as manifests, next to the parts that they share (ADR 5)."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from flujo_client.errors import KeyMissing, SerializationError
from flujo_client.serial import Manifest, Packed, digest_of, part_key, stored_apart
from flujo_worker.store.postgres.pool import InPostgres, RetryingPool

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

MOST_BYTES = 32 * 1024 * 1024


class Recent:
    """Blobs that this process has stored or read recently: the next attempt here need not fetch them.

    A blob is identified by its digest and never changes, so nothing here can be out of date. The least recently used is dropped first: the
    bound `most` is on the stored bytes and, if they are compressed, on their JSON. A part that several values share is held once, while one
    of them is. Thread-safe.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most, self._size = most, 0
        self._blobs: OrderedDict[str, Packed] = OrderedDict()
        self._parts: dict[str, Packed] = {}
        self._uses: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, blobs: Iterable[Packed]) -> None:
        """Remember blobs, except those larger than a quarter of the cache."""
        with self._lock:
            for blob in blobs:
                if blob.digest in self._blobs or sum(map(_weight, blob.parts or (blob,))) > self._most // 4:
                    continue
                self._blobs[blob.digest] = blob
                self._hold(blob)
                while self._size > self._most:
                    self._let_go(self._blobs.popitem(last=False)[1])

    def find(self, digests: Collection[str]) -> dict[str, Packed]:
        with self._lock:
            found = {digest: self._blobs[digest] for digest in digests if digest in self._blobs}
            for digest in found:
                self._blobs.move_to_end(digest)
            return found

    def find_parts(self, keys: Collection[str]) -> dict[str, Packed]:
        """Return the parts of remembered blobs, by their keys."""
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


class BlobsInPostgres(InPostgres):
    def __init__(self, pool: RetryingPool) -> None:
        super().__init__(pool)
        self._recent = Recent()

    def store(self, blobs: Sequence[Packed]) -> None:
        """Store values. Of values in parts store only new parts, unless Postgres has lost the others."""
        parts = {key: part for blob in blobs for key, part in stored_apart(blob).items()}
        shared = set(self._recent.find_parts(parts))
        bodies = {blob.digest: bytes(Manifest.of(blob) if blob.parts else blob) for blob in blobs}
        bodies |= {key: bytes(part) for key, part in parts.items() if key not in shared}
        while missing := self._missing(bodies, shared):
            bodies |= {key: bytes(parts[key]) for key in missing}
            shared -= missing
        self._recent.add(blobs)

    def _missing(self, bodies: dict[str, bytes], shared: set[str]) -> set[str]:
        """Store bodies, or return which shared ones are missing."""
        parameters = {"digests": list(bodies), "bodies": list(bodies.values()), "shared": list(shared)}
        return {row["digest"] for row in self._pool.rows("store_blobs", parameters)}

    def fetch(self, digests: Collection[str]) -> dict[str, Packed]:
        """Return the values that are there and fit their digests."""
        found = self._recent.find(digests)
        bodies = self._bodies(set(digests) - found.keys())
        manifests = [manifest for digest, body in bodies.items() if (manifest := _manifest(digest, body)) is not None]
        parts = self._parts({key for manifest in manifests for key in manifest.parts})
        fetched = _proven(bodies)
        fetched |= {each.digest: each.value(parts) for each in manifests if each.parts <= parts.keys()}
        self._recent.add(fetched.values())
        return found | fetched

    def _parts(self, keys: set[str]) -> dict[str, Packed]:
        held = self._recent.find_parts(keys)
        return held | _proven(self._bodies(keys - held.keys()))

    def _bodies(self, keys: set[str]) -> dict[str, bytes]:
        if not keys:
            return {}
        return {row["digest"]: row["body"] for row in self._pool.rows("blobs", {"digests": list(keys)}, binary=True)}


def _proven(bodies: dict[str, bytes]) -> dict[str, Packed]:
    """Read what is stored whole, and still is what its key says."""
    proven = {}
    for key, body in bodies.items():
        try:
            blob = Packed.from_bytes(body)
            is_proven = blob.matches(digest_of(key))
        except KeyMissing:  # the value is there
            raise
        except SerializationError:
            continue
        if is_proven:
            proven[key] = blob
    return proven


def _manifest(digest: str, body: bytes) -> Manifest | None:
    try:
        return Manifest.read(digest, body)
    except KeyMissing:
        raise
    except SerializationError:
        return None
