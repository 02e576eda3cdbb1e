"""One serialised value, as it is in a Postgres column and as it is sent in a message.

Four forms, distinguished by their first byte: `j` JSON, `z` zstd of the JSON, `e` one of these two encrypted, `#` only the JSON's sha256 for a
value that is stored as a blob. It never looks into the value and never fetches one: the holder of a reference loads the
value and proves it with `matches`.

A value above `PARTS_ABOVE` that was packed here is held in parts, which the next version of the value shares where it did not change
(ADR 5): its JSON is cut where a later version is likely to be cut too. `manifest.py` is how such a value is stored.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from typing import Final, NamedTuple, Self

import zstandard

from flujo_client.errors import SerializationError
from flujo_client.serial.encryption import FORM, decrypted, encrypted, require_key
from flujo_client.serial.fragments import FRAGMENT_BYTES, Held, fragments, is_run, placeholder
from flujo_client.serial.tree import Tree, dumps, loads

COMPRESS_ABOVE: Final = 2048
PARTS_ABOVE: Final = 256 * 1024
MAX_BYTES: Final = 64 * 1024 * 1024
_LEVEL: Final = 1  # of prose 3 saves two parts in a hundred more and takes a third longer
_DIGEST: Final = re.compile(rb"[0-9a-f]{64}")


class Packed:
    """An immutable serialised value. Two are equal if both hold equal JSON, or both refer to it.

    Make one with `of`, `from_bytes` or `from_wire`; `stored` is what `bytes()` gives. It is compressed, decompressed and hashed when that
    is first asked for, and then remembered. `parts` are the fragments of the JSON, where it is large and they are known; no part has parts.
    """

    __slots__ = ("_digest", "_is_run", "_json", "_length", "_stored", "parts")

    def __init__(
        self,
        stored: bytes | None = None,
        *,
        json: bytes | None = None,
        parts: tuple[Packed, ...] = (),
        digest: str | None = None,
    ) -> None:
        self._stored, self._json, self._digest = stored, json, digest
        self.parts: Final = parts
        self._is_run: bool | None = None
        if stored is not None and stored[:1] == b"j":
            self._json = stored[1:]
        if stored is not None and stored[:1] == b"#":
            self._digest = stored[1:].decode("ascii")
        self._length = sum(part.length for part in parts) if parts else None if self._json is None else len(self._json)

    @classmethod
    def of(cls, tree: Tree, *, like: Iterable[Packed | None] = (), held: Held = ()) -> Packed:
        """Pack what `encode` returned; `held` are the fragments left out of it, if it is an outline.

        It may share large parts with the values `like`; those are not hashed, compressed or stored again.
        """
        known = {_ends(part.json()): part for each in like if each is not None for part in each.parts}
        if not known and not held:
            json = dumps(tree)
            if len(json) <= PARTS_ABOVE:
                return cls.of_json(json)
        pieces = fragments(tree, held)
        if sum(map(len, pieces)) <= PARTS_ABOVE:
            return cls.of_json(b"".join(pieces))
        return cls.of_parts(_same(known.get(_ends(piece)), piece) or cls.of_json(piece) for piece in pieces)

    @classmethod
    def of_json(cls, json: bytes) -> Packed:
        """Pack what is already JSON, or a fragment of it."""
        return cls(json=json)

    @classmethod
    def of_parts(cls, parts: Iterable[Packed], digest: str | None = None) -> Packed:
        """Pack a value whose JSON is in parts; with its digest, if that is known already."""
        return cls(parts=tuple(parts), digest=digest)

    @classmethod
    def from_bytes(cls, stored: bytes | bytearray | memoryview) -> Self:
        """Read the stored form back. Raises SerializationError if it is none of the four."""
        data = bytes(stored)
        if data[:1] in (b"j", b"z", b"e") or (data[:1] == b"#" and _DIGEST.fullmatch(data, 1)):
            return cls(data)
        raise SerializationError(f"{len(data)} bytes that are not a packed value")

    @classmethod
    def from_wire(cls, tree: Tree) -> Self:
        """Read the message form back. Raises SerializationError if it is none of the four, or its key is missing here."""
        try:
            ((form, body),) = tree.items()
            if form == "j":
                return cls(b"j" + dumps(body))
            if form in ("z", "e"):
                packed = cls(form.encode("ascii") + base64.b64decode(body, validate=True))
                packed.require_key()
                return packed
            return cls.from_bytes(f"{form}{body}".encode("ascii") if form == "#" else b"")
        except (AttributeError, TypeError, ValueError) as error:
            raise SerializationError("not the message form of a packed value", cause=error) from error

    def require_key(self) -> None:
        """Raise SerializationError if the value is encrypted with a key that this process lacks."""
        if self._stored is not None and self._stored[:1] == FORM:
            require_key(self._stored)

    def to_wire(self) -> Tree:
        """Return the form that is sent in a message: a plain tree, so that it survives copying and stock JSON too."""
        form, body = self.stored[:1], self.stored[1:]
        if form == b"j":
            return {"j": loads(body)}
        return {"#": self.digest} if form == b"#" else {form.decode("ascii"): base64.b64encode(body).decode("ascii")}

    def json(self, *, max_bytes: int = MAX_BYTES) -> bytes:
        """Return the JSON. Raises SerializationError for a reference, damaged data, or more than `max_bytes`."""
        if self.is_reference:
            what = f"only a reference to {self.digest[:12]}…, not the value"
            raise SerializationError(what, suggestion="load the value it refers to")
        if self._json is None and not self.parts:
            plain = decrypted(self.stored)
            self._json = plain[1:] if plain[:1] == b"j" else _decompress(plain[1:], max_bytes)
            self._length = len(self._json)
        if self.length > max_bytes:
            raise SerializationError(f"{self.length} bytes, more than the {max_bytes} allowed")
        return b"".join(part.json() for part in self.parts) if self._json is None else self._json

    def tree(self, *, max_bytes: int = MAX_BYTES) -> Tree:
        """Return a fresh tree. Raises what `json` raises, and SerializationError if the JSON is damaged."""
        return loads(self.json(max_bytes=max_bytes))

    def outline(self) -> Outline:
        """Return a fresh tree, without what is in the middle of its largest lists. Raises what `tree` raises."""
        pieces: list[bytes] = []
        held: list[list[bytes]] = []
        was_run = False
        for part in self.parts:
            if part.is_run and was_run:
                held[-1].append(part.json())
            elif part.is_run:
                pieces.append(placeholder(len(held)))
                held.append([part.json()])
            else:
                pieces.append(part.json())
            was_run = part.is_run
        return Outline(loads(b"".join(pieces)), held) if held else Outline(self.tree(), ())

    @property
    def is_run(self) -> bool:
        """Return whether this is a large fragment that contains only items of a list."""
        if self._is_run is None:
            self._is_run = self.length >= FRAGMENT_BYTES and is_run(self.json())
        return self._is_run

    @property
    def stored(self) -> bytes:
        """Return the stored form: compressed if the JSON is above 2048 bytes and that makes it smaller, and encrypted if this process has keys."""
        if self._stored is None:
            json = self.json(max_bytes=self.length)
            small = zstandard.ZstdCompressor(level=_LEVEL).compress(json) if len(json) > COMPRESS_ABOVE else json
            self._stored = encrypted(b"z" + small if len(small) < len(json) else b"j" + json)
        return self._stored

    @property
    def digest(self) -> str:
        """Return the sha256 of the JSON, in hex."""
        if self._digest is None:
            hashed = hashlib.sha256()
            for part in self.parts or (self,):
                hashed.update(part.json())
            self._digest = hashed.hexdigest()
        return self._digest

    @property
    def length(self) -> int:
        """Return how many bytes of JSON the value has. Raises what `json` raises."""
        return len(self.json()) if self._length is None else self._length

    @property
    def size(self) -> int:
        """Return how many bytes the stored form takes; of a value in parts, which is not compressed for that, what its JSON takes."""
        return self.length if self.parts else len(self.stored)

    @property
    def is_reference(self) -> bool:
        """Return whether only the digest is here."""
        return self._stored is not None and self._stored[:1] == b"#"

    def reference(self) -> Packed:
        """Return the reference to this value."""
        return type(self)(b"#" + self.digest.encode("ascii"))

    def matches(self, digest: str) -> bool:
        """Return whether this is the value, or the reference to the value, with that digest."""
        return self.digest == digest

    def __bytes__(self) -> bytes:
        return self.stored

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Packed):
            return NotImplemented
        if self.is_reference or other.is_reference:
            return self.is_reference == other.is_reference and self.digest == other.digest
        return bool(self.parts and self.parts == other.parts) or self.json() == other.json()

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        """Show form and size, never the value: it may hold secrets."""
        form = "parts" if self.parts else self.stored[:1].decode("latin-1")
        return f"<Packed {form} {self.size} bytes>"


class Outline(NamedTuple):
    """A tree with placeholders in its largest lists, and the fragments that they are for."""

    tree: Tree
    held: Held


def _ends(json: bytes) -> tuple[int, bytes, bytes]:
    """Return what two equal fragments have in common: hashing them whole would cost as much as their digests."""
    return len(json), json[:64], json[-64:]


def _same(part: Packed | None, json: bytes) -> Packed | None:
    return part if part is not None and part.json() == json else None


def _decompress(data: bytes, max_bytes: int) -> bytes:
    """Decompress up to a limit. max_output_size does not bound a frame that states its size, so the stated size is checked first."""
    try:
        stated = zstandard.frame_content_size(data)
        if stated > max_bytes:
            raise SerializationError(f"would be {stated} bytes, more than the {max_bytes} allowed")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=max_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise SerializationError("damaged or larger than allowed", cause=error) from error
