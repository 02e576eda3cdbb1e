"""Distinguishes a value that only lacks its last braces from one that lacks members.

It must not close a list, because its intended length cannot be known, nor an object whose schema declares nothing.
"""

from __future__ import annotations

from itertools import islice, product
from typing import Any, Final

from flujo_client.schemas.parts import Part, constants_of, parts
from flujo_client.schemas.schema import Check
from flujo_worker.aros.decode import same
from flujo_worker.aros.outcome import Path

MOST: Final = 32
MOST_IN_ALL: Final = 256
Way = tuple[Part, ...]
"""Parts of the schema that hold together: one choice for each union."""
Known = dict[int, list[Way]]


def is_complete(check: Check, value: Any, left_open: list[tuple[Path, bool]]) -> bool:
    """Return whether what the text's end left open has all that the schema declares. All ways through the schema go down together, each part once."""
    if not left_open or any(is_list for _, is_list in left_open):
        return False
    known: Known = {}
    ways = _ways(check, (check.root, ""), known)
    for key in left_open[-1][0]:
        ways = _below(check, [way for way in ways if _all_there(way, value)], str(key), known)
        value = value[key]
    return any(_all_there(way, value) for way in ways)


def _all_there(way: Way, value: Any) -> bool:
    declared = {key for part, _ in way if isinstance(part, dict) for key in part.get("properties") or ()}
    if not declared or not declared <= value.keys():
        return False
    # another constant: the value belongs to another branch
    return all(same(value[key], constant) for part, _ in way for key, constant in constants_of(part).items())


def _below(check: Check, ways: list[Way], key: str, known: Known) -> list[Way]:
    found: dict[frozenset[int], Way] = {}
    for way in ways:
        members = (child for sub, place in way if isinstance(sub, dict) for child in check.members(sub, place, key))
        choices = product(*(_ways(check, child, known) for child in members))
        for chosen in islice(choices, MOST):
            below = tuple(part for one in chosen for part in one)
            found.setdefault(frozenset(id(sub) for sub, _ in below), below)
            if len(found) >= MOST_IN_ALL:
                return list(found.values())
    return list(found.values())


def _ways(check: Check, part: Part, known: Known) -> list[Way]:
    sub, place = check.resolved(*part)
    if isinstance(sub, bool):
        return [((sub, place),)]
    if id(sub) not in known:
        known[id(sub)] = [((sub, place),)]  # reached again through a reference: it adds nothing
        known[id(sub)] = _ways_of(check, sub, place, known)
    return known[id(sub)]


def _ways_of(check: Check, sub: dict[str, Any], place: str, known: Known) -> list[Way]:
    options = [_ways(check, each, known) for each in check.demanded(sub, place)]
    for keyword in ("anyOf", "oneOf"):
        branches = [way for branch in parts(sub, place, keyword) for way in _ways(check, branch, known)]
        if branches:
            options.append(branches)
    return [((sub, place), *(piece for way in chosen for piece in way)) for chosen in islice(product(*options), MOST)]
