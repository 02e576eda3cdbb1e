"""Trees of plain JSON and their bytes, and the text that Postgres can store.

A tree is None, bool, int, float, str, a list of trees, or a dict from str to tree: what `encode` gives and `decode`
takes. This module knows no tags.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import orjson

from flujo_client.errors import SerializationError

# A recursive alias would make every caller cast: lists and dicts are invariant.
Tree: TypeAlias = Any

_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_SORTED = _STRICT | orjson.OPT_SORT_KEYS


def dumps(tree: Tree, *, sorts: bool = False) -> bytes:
    """Write a tree as compact JSON, keys in their order or sorted. Raises SerializationError if it is not a tree."""
    try:
        return orjson.dumps(tree, option=_SORTED if sorts else _STRICT)
    except orjson.JSONEncodeError as error:
        what = f"not a plain tree: {error}"
        raise SerializationError(what, suggestion="encode() the value first", cause=error) from error


def canonical(tree: Tree) -> bytes:
    """Write a tree with sorted keys, so that equal trees give equal digests."""
    return dumps(tree, sorts=True)


def digest(tree: Tree) -> str:
    """Return the SHA-256 of a tree's canonical JSON, in hex."""
    return hashlib.sha256(canonical(tree)).hexdigest()


def loads(text: bytes) -> Tree:
    """Read a tree from JSON. Raises SerializationError if it is not JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        # `error.doc` holds the whole text, which may hold secrets: it must not be attached as the cause.
        reason = f"not JSON: {error.msg} at character {error.pos}"
    raise SerializationError(reason)


_MOCKS = frozenset({"unittest.mock", "mock", "mock.mock"})


def is_mock(kind: type) -> bool:
    """Return whether a type comes from the mock library, or descends from one that does."""
    return any(ancestor.__module__ in _MOCKS for ancestor in kind.__mro__)


def type_name(kind: type) -> str:
    """Return a type's name for people: `datetime.date`, but `int`."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def is_storable_text(text: str) -> bool:
    """Return whether Postgres stores a text unchanged: it has neither a NUL nor a lone surrogate."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def storable_text(text: str, *, most: int | None = None) -> str:
    """Replace characters that Postgres does not accept, and join pairs of surrogates. An ellipsis replaces text beyond `most` characters."""
    if most is not None and len(text) > most:
        text = f"{text[: most - 1]}…"
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\0", "\N{SYMBOL FOR NULL}")
