"""Large values in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flujo_client.serial import Packed
from flujo_worker.store.memory.tables import InMemory


class BlobsInMemory(InMemory):
    """The port `BlobStore`."""

    def store(self, blobs: Sequence[Packed]) -> None:
        self._t.keep(blobs)

    def fetch(self, digests: Collection[str]) -> dict[str, Packed]:
        return {digest: self._t.blobs[digest] for digest in digests if digest in self._t.blobs}
