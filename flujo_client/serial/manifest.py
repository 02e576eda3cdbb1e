"""The stored form of a value in parts: each part under its own key, and under the value's digest a manifest that names them (ADR 5).

A manifest is `p`, a checksum in hex, and a JSON list: fragments as texts, or as `{"e": base64}` if they are encrypted, and `{"#": digest}`
for each part that is stored separately. The checksum is of the value's digest and the list, so that its reader need not hash the whole
value: the parts are verified once, by their own digests. It is in the table of blobs only, never in a column of another table and never in
a message.

Parts have separate keys because the same JSON may be a part of one value and the whole of another, stored as a manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from flujo_client.errors import SerializationError
from flujo_client.serial.encryption import FORM, decrypted, encrypted, is_renewed
from flujo_client.serial.packed import Packed
from flujo_client.serial.tree import Tree, dumps, loads

_FORM: Final = b"p"
_LIST: Final = 65
"""The offset of the list."""
_STORED_APART: Final = 2048
"""The size in bytes from which a part is stored separately."""
_PART: Final = "part:"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The parts of a value."""

    digest: str
    entries: tuple[Packed, ...]
    """Fragments of its JSON, and references to parts."""

    @classmethod
    def of(cls, packed: Packed) -> Self:
        """Write down what a value in parts consists of."""
        apart = (each.reference() if each.length >= _STORED_APART else each for each in packed.parts)
        return cls(packed.digest, tuple(apart))

    @classmethod
    def read(cls, digest: str, body: bytes) -> Self | None:
        """Read the blob of a digest; None if it is not a manifest. Raises SerializationError if it is another value's, or damaged."""
        if body[:1] != _FORM:
            return None
        if body[1:_LIST] != _checksum(digest, body[_LIST:]):
            raise SerializationError("the manifest is damaged or belongs to another value")
        entries = loads(body[_LIST:])
        made = (Packed.of_json(each.encode()) if isinstance(each, str) else Packed.from_wire(each) for each in entries)
        return cls(digest, tuple(made))

    def __bytes__(self) -> bytes:
        entries = dumps([_written(each) for each in self.entries])
        return _FORM + _checksum(self.digest, entries) + entries

    @property
    def parts(self) -> set[str]:
        """Return the keys of the parts that are stored by themselves."""
        return {part_key(each) for each in self.entries if each.is_reference}

    def value(self, parts: Mapping[str, Packed]) -> Packed:
        """Assemble the value from all its parts by key."""
        found = (parts[part_key(each)] if each.is_reference else each for each in self.entries)
        return Packed.of_parts(found, self.digest)


def renewed(key: str, body: bytes) -> bytes:
    """Return a value of `flujo_blobs` or another column as this process would store it now: encrypted with its first key, if it has one.

    The `key` that a blob is stored under matters for manifests only. Raises SerializationError if it is damaged, or its key is missing here.
    """
    manifest = Manifest.read(key, body)
    if manifest is None:
        return body if is_renewed(body) else encrypted(decrypted(body))
    entries = tuple(each if is_renewed(each.stored) else Packed.of_json(each.json()) for each in manifest.entries)
    return bytes(Manifest(manifest.digest, entries))


def stored_apart(packed: Packed) -> dict[str, Packed]:
    """Return the parts of a value that are stored by themselves, by key."""
    return {part_key(each): each for each in packed.parts if each.length >= _STORED_APART}


def part_key(part: Packed) -> str:
    """Return the key under which a part is stored."""
    return _PART + part.digest


def digest_of(key: str) -> str:
    """Return the digest of what is stored under a key."""
    return key.removeprefix(_PART)


def _checksum(digest: str, entries: bytes) -> bytes:
    return hashlib.sha256(digest.encode("ascii") + entries).hexdigest().encode("ascii")


def _written(entry: Packed) -> Tree:
    """Write an entry: a reference, an encrypted fragment, or the text of a fragment, which is not compressed separately."""
    is_plain = not entry.is_reference and entry.stored[:1] != FORM
    return entry.json().decode() if is_plain else entry.to_wire()
