"""One serialised value, as it lies in a Postgres column and as it rides in a message (M-005).

Three forms, told apart by their first byte: `j` JSON, `z` zstd of the JSON, `#` only the JSON's sha256 for a value
that is kept elsewhere. It never looks into the value and never fetches one: whoever holds a reference loads the
value and proves it with `matches`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import zstandard

from flujo_client.errors import SerializationError
from flujo_client.serial.tree import Tree, dumps, loads

COMPRESS_ABOVE: Final = 2048
MAX_BYTES: Final = 64 * 1024 * 1024
_LEVEL: Final = 1  # of prose 3 saves two parts in a hundred more and takes a third longer
_DIGEST: Final = re.compile(rb"[0-9a-f]{64}")


@dataclass(frozen=True, eq=False, repr=False)
class Packed:
    """An immutable serialised value. Two are equal if both hold equal JSON, or both refer to it.

    Make one with `of`, `from_bytes` or `from_wire`; `stored` is what `bytes()` gives. What was decompressed once is remembered, for
    a large value is measured, proved and read one after the other.
    """

    stored: bytes

    @classmethod
    def of(cls, tree: Tree) -> Self:
        """Pack a tree: compressed if its JSON is above 2048 bytes and that makes it smaller."""
        json = dumps(tree)
        if len(json) > COMPRESS_ABOVE:
            small = zstandard.ZstdCompressor(level=_LEVEL).compress(json)
            if len(small) < len(json):
                packed = cls(b"z" + small)
                packed.__dict__["_json"] = json
                return packed
        return cls(b"j" + json)

    @classmethod
    def from_bytes(cls, stored: bytes | bytearray | memoryview) -> Self:
        """Read the stored form back. Raises SerializationError if it is none of the three."""
        data = bytes(stored)
        if data[:1] in (b"j", b"z") or (data[:1] == b"#" and _DIGEST.fullmatch(data, 1)):
            return cls(data)
        raise SerializationError(f"{len(data)} bytes that are not a packed value")

    @classmethod
    def from_wire(cls, tree: Tree) -> Self:
        """Read the message form back. Raises SerializationError if it is none of the three."""
        try:
            ((form, body),) = tree.items()
            if form == "j":
                return cls(b"j" + dumps(body))
            if form == "z":
                return cls(b"z" + base64.b64decode(body, validate=True))
            return cls.from_bytes(f"{form}{body}".encode("ascii") if form == "#" else b"")
        except (AttributeError, TypeError, ValueError) as error:
            raise SerializationError("not the message form of a packed value", cause=error) from error

    def to_wire(self) -> Tree:
        """Give the form that rides in a message: a plain tree, so that it survives copying and stock JSON too."""
        if self._form == b"j":
            return {"j": loads(self._body)}
        if self._form == b"z":
            return {"z": base64.b64encode(self._body).decode("ascii")}
        return {"#": self.digest}

    def json(self, *, max_bytes: int = MAX_BYTES) -> bytes:
        """Give the JSON. Raises SerializationError for a reference, damaged data, or more than `max_bytes`."""
        if self.is_reference:
            raise SerializationError(
                f"only a reference to {self.digest[:12]}…, not the value", suggestion="load the value it refers to"
            )
        json = self._body
        if self._form == b"z":
            json = self.__dict__.get("_json") or self.__dict__.setdefault("_json", _decompress(self._body, max_bytes))
        if len(json) > max_bytes:
            raise SerializationError(f"{len(json)} bytes, more than the {max_bytes} allowed")
        return json

    def tree(self, *, max_bytes: int = MAX_BYTES) -> Tree:
        """Give a fresh tree. Raises what `json` raises, and SerializationError if the JSON is damaged."""
        return loads(self.json(max_bytes=max_bytes))

    @cached_property
    def digest(self) -> str:
        """The sha256 of the JSON, in hex."""
        return self._body.decode("ascii") if self.is_reference else hashlib.sha256(self.json()).hexdigest()

    @property
    def size(self) -> int:
        """How many bytes the stored form takes."""
        return len(self.stored)

    @property
    def is_reference(self) -> bool:
        """Whether only the digest is here."""
        return self._form == b"#"

    def reference(self) -> Self:
        """Give the reference to this value."""
        return type(self)(b"#" + self.digest.encode("ascii"))

    def matches(self, digest: str) -> bool:
        """Tell whether this is the value, or the reference to the value, with that digest."""
        return self.digest == digest

    @property
    def _form(self) -> bytes:
        return self.stored[:1]

    @property
    def _body(self) -> bytes:
        return self.stored[1:]

    def __bytes__(self) -> bytes:
        return self.stored

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Packed):
            return NotImplemented
        return self.stored == other.stored or (self.is_reference == other.is_reference and self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        """Never the value itself: it may hold secrets."""
        return f"<Packed {self._form.decode('latin-1')} {self.size} bytes>"


def _decompress(data: bytes, max_bytes: int) -> bytes:
    """A frame that states its size is not bounded by max_output_size, so the stated size is checked first."""
    try:
        stated = zstandard.frame_content_size(data)
        if stated > max_bytes:
            raise SerializationError(f"would be {stated} bytes, more than the {max_bytes} allowed")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=max_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise SerializationError("damaged or larger than allowed", cause=error) from error
