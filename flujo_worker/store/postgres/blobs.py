"""Large values in Postgres: each under its digest, those in parts as manifests beside the parts that they share (ADR 68)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from flujo_client.errors import SerializationError
from flujo_client.serial import Manifest, Packed, digest_of, stored_apart
from flujo_worker.store.blob_cache import Recent

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class _Rows(Protocol):
    def __call__(self, name: str, parameters: dict[str, Any], *, binary: bool = False) -> list[dict[str, Any]]:
        """Give the rows of a statement."""


class Blobs:
    """What this process stores and reads by digest.

    Args:
        rows: asks Postgres.
    """

    def __init__(self, rows: _Rows) -> None:
        self._rows, self._recent = rows, Recent()

    def store(self, blobs: Sequence[Packed]) -> None:
        """Store values; of those in parts only what is new here, unless Postgres has it no longer."""
        parts = {key: part for blob in blobs for key, part in stored_apart(blob).items()}
        shared = set(self._recent.find_parts(parts))
        bodies = {blob.digest: bytes(Manifest.of(blob) if blob.parts else blob) for blob in blobs}
        bodies |= {key: bytes(part) for key, part in parts.items() if key not in shared}
        while missing := self._missing(bodies, shared):
            bodies |= {key: bytes(parts[key]) for key in missing}
            shared -= missing
        self._recent.add(blobs)

    def _missing(self, bodies: dict[str, bytes], shared: set[str]) -> set[str]:
        """Store bodies, or tell what is missing of what they share."""
        parameters = {"digests": list(bodies), "bodies": list(bodies.values()), "shared": list(shared)}
        return {row["digest"] for row in self._rows("store_blobs", parameters)}

    def fetch(self, digests: Collection[str]) -> dict[str, Packed]:
        """Give the values that are there and fit their digests."""
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
        return {row["digest"]: row["body"] for row in self._rows("blobs", {"digests": list(keys)}, binary=True)}


def _proven(bodies: dict[str, bytes]) -> dict[str, Packed]:
    """Read what is stored whole, and still is what its key says."""
    proven = {}
    for key, body in bodies.items():
        with suppress(SerializationError):
            blob = Packed.from_bytes(body)
            if blob.matches(digest_of(key)):
                proven[key] = blob
    return proven


def _manifest(digest: str, body: bytes) -> Manifest | None:
    try:
        return Manifest.read(digest, body)
    except SerializationError:
        return None
