"""Stored values as the page shows them: cut, without secrets, and only to those who may see them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from flujo_client.contract.read import plain
from flujo_client.errors import KeyMissing, SerializationError
from flujo_client.gateway.requests import blobs
from flujo_client.redact import redact_tree
from flujo_client.serial import Packed, safe_serialize

if TYPE_CHECKING:
    from flujo_client.ui.reading import PageReads

SHOWN: Final = 20_000
"""The characters of a value that are shown; the rest can be downloaded."""
_NODES: Final = 10_000
HIDDEN: Final = "Values are hidden here."


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A value, or why it is not shown."""

    text: str = ""
    gap: str = ""
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Reads stored values for a user who may see them or not, without the fields that the project hides."""

    reading: PageReads
    shows: bool
    hidden: Collection[str] = ()

    def value(self, body: bytes | None) -> ShownValue | None:
        """Read a value's column; None where there is none."""
        if body is None or not self.shows:
            return None if body is None else ShownValue(gap=HIDDEN)
        try:
            tree = plain(safe_serialize(self._tree(body), max_nodes=_NODES))
        except KeyMissing as error:
            return ShownValue(gap=f"Encrypted: this process has no key '{error.key_id}' in `value_keys`.")
        except SerializationError as error:
            return ShownValue(gap=f"It cannot be read: {error.message}.")
        return self.text(written(redact_tree(tree, hidden=self.hidden)))

    def text(self, text: str | None) -> ShownValue | None:
        """Cut a text that was stored without secrets."""
        if text is None or not self.shows:
            return None if text is None else ShownValue(gap=HIDDEN)
        return ShownValue(text[:SHOWN], is_cut=len(text) > SHOWN)

    def whole(self, body: bytes) -> bytes:
        """Return a whole value as JSON. Raises SerializationError."""
        return orjson.dumps(redact_tree(plain(self._tree(body)), hidden=self.hidden), option=orjson.OPT_INDENT_2)

    def _tree(self, body: bytes) -> Any:
        packed = Packed.from_bytes(body)
        if packed.is_reference:
            found = self.reading.ask(blobs([packed.digest]))
            if packed.digest not in found:
                raise SerializationError("the blob that holds it is gone")
            packed = found[packed.digest]
        return packed.tree()


def written(tree: Any) -> str:
    """Write plain data for a person: a text as it is, anything else as indented JSON."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    return tree if isinstance(tree, str) else orjson.dumps(tree, option=option).decode()
