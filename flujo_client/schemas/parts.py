"""The parts of a JSON Schema as plain data: types, branches, tags, names, and the places of parts in the root. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

ALL_KINDS: Final = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_NAMES: Final = frozenset({"id", "$id", "$schema"})
_VALUES: Final = frozenset({"const", "enum", "default", "examples"})

Schema = dict[str, Any] | bool
Part = tuple[Schema, str]
"""A part of a schema, and its place in the root."""


def types_of(sub: Mapping[str, Any]) -> list[str]:
    """Return the types that a schema names, in its order, or the types of its members if it only lists members."""
    named = sub.get("type")
    if isinstance(named, str):
        return [named]
    if isinstance(named, list):
        return named
    members = sub["enum"] if "enum" in sub else [sub["const"]] if "const" in sub else []
    return list(dict.fromkeys(kind_of(member) for member in members))


def kind_of(value: Any) -> str:
    """Return the JSON type of a decoded value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    kinds = ((str, "string"), (int, "integer"), (float, "number"), (dict, "object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "array")


def parts(sub: Mapping[str, Any], pointer: str, keyword: str) -> Iterator[Part]:
    """Return the branches under a keyword, each with its place."""
    for index, branch in enumerate(sub.get(keyword) or ()):
        yield branch, f"{pointer}/{keyword}/{index}"


def mappings_in(root: Any) -> Iterator[dict[str, Any]]:
    """Yield each mapping in a schema, including the schema itself: its parts, and mappings that only look like parts."""
    pending = [root]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            yield part
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)


def step(key: str) -> str:
    """Write a key as one step of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def size_of(value: Any, most: int) -> int:
    """Count the parts of a value; counting stops at `most`."""
    pending, count = [value], 0
    while pending and count < most:
        part = pending.pop()
        count += 1
        if isinstance(part, dict):
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
    return count


def constants_of(sub: Any) -> dict[str, Any]:
    """Return the constants that an object's schema requires of its members, by name."""
    members = (sub.get("properties") or {}) if isinstance(sub, dict) else {}
    return {name: each["const"] for name, each in members.items() if isinstance(each, dict) and "const" in each}


def tags_of(sub: Any) -> dict[str, list[Any]]:
    """Return the allowed values of an object's members, by name, if its schema lists them."""
    members = (sub.get("properties") or {}) if isinstance(sub, dict) else {}
    return {
        name: [each["const"]] if "const" in each else each["enum"]
        for name, each in members.items()
        if isinstance(each, dict) and ("const" in each or isinstance(each.get("enum"), list))
    }


def telling(objects: Sequence[Any]) -> tuple[str, ...]:
    """Return the members that always identify one of some objects' schemas: no two schemas allow the same value for them."""
    tags = [tags_of(each) for each in objects]
    pairs = list(combinations(tags, 2))

    def is_shared(name: str) -> bool:
        return any(is_same(one, other) for some, others in pairs for one in some[name] for other in others[name])

    common = (name for name in (tags[0] if tags else ()) if all(name in each for each in tags))
    return tuple(name for name in common if not is_shared(name))


def is_same(one: Any, other: Any) -> bool:
    """Return whether two scalars are the same JSON: 1 and true differ."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def without_names(part: Any) -> Any:
    """Leave out the names of a schema and its parts, and the drafts that they name: a pointer then leads from the root to any part."""
    if isinstance(part, list):
        return [without_names(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: each if key in _VALUES else without_names(each)
        for key, each in part.items()
        if not (key in _NAMES and isinstance(each, str))
    }
