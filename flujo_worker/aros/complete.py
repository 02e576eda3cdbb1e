"""Tells a value that only lacks its last braces from one that lacks members: the test of rule 9.

It must not close a list, for nobody can tell how long it was to be, nor an object whose schema declares nothing. In: the value read
so far and the containers left open; out: whether every declared member of each of them is there.
"""

from __future__ import annotations

from itertools import islice, product
from typing import TYPE_CHECKING, Any, Final

from flujo_worker.aros.check import Schema, parts, step
from flujo_worker.aros.decode import same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flujo_worker.aros.check import Check
    from flujo_worker.aros.outcome import Path

MOST: Final = 32
Part = tuple[Schema, str]
Way = tuple[Part, ...]
"""Parts of the schema that hold together: one choice for each union."""


def is_complete(check: Check, value: Any, left_open: list[tuple[Path, bool]]) -> bool:
    """Tell whether what the text's end left open has all that the schema declares."""
    if not left_open or any(is_list for _, is_list in left_open):
        return False
    path = left_open[-1][0]
    return any(_all_there(check, way, value, path) for way in _ways(check, (check.root, "")))


def _all_there(check: Check, way: Way, value: Any, path: Path) -> bool:
    declared = {key for part, _ in way if isinstance(part, dict) for key in part.get("properties") or ()}
    if not declared or not declared <= value.keys() or _another_way(way, value):
        return False
    if not path:
        return True
    children = [child for part in way for child in _member(part, str(path[0]))]
    choices = product(*(list(_ways(check, child)) for child in children))
    below = (tuple(part for way in ways for part in way) for ways in islice(choices, MOST))
    return any(_all_there(check, way, value[path[0]], path[1:]) for way in below)


def _another_way(way: Way, value: dict[str, Any]) -> bool:
    """A member that must be another constant: the value is of another branch."""
    constants = (
        (key, member["const"])
        for part, _ in way
        if isinstance(part, dict)
        for key, member in (part.get("properties") or {}).items()
        if isinstance(member, dict) and "const" in member
    )
    return any(not same(value[key], constant) for key, constant in constants)


def _ways(check: Check, part: Part, depth: int = 0) -> Iterator[Way]:
    sub, place = check.resolved(*part)
    if isinstance(sub, bool) or depth > MOST:
        yield ((sub, place),)
        return
    options = [list(_ways(check, branch, depth + 1)) for branch in parts(sub, place, "allOf")]
    if isinstance(sub.get("$ref"), str) and (target := check.referred(sub["$ref"])) is not None:
        options.append(list(_ways(check, target, depth + 1)))
    for keyword in ("anyOf", "oneOf"):
        branches = [way for branch in parts(sub, place, keyword) for way in _ways(check, branch, depth + 1)]
        if branches:
            options.append(branches)
    for chosen in islice(product(*options), MOST):
        yield ((sub, place), *(piece for way in chosen for piece in way))


def _member(part: Part, key: str) -> Iterator[Part]:
    sub, place = part
    if isinstance(sub, dict) and key in (sub.get("properties") or {}):
        yield sub["properties"][key], f"{place}/properties/{step(key)}"
    elif isinstance(sub, dict) and isinstance(sub.get("additionalProperties"), dict):
        yield sub["additionalProperties"], f"{place}/additionalProperties"
