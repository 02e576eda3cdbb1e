"""Find the branch of a union that a value most likely means, if it matches none. Pure.

In: the branches, a value, and a way to ask whether a part of the schema holds. Out: the branch that the value's constants, type and
members indicate.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from flujo_client.schemas.parts import Part, Schema, constants_of, is_same, kind_of
from flujo_client.schemas.schema import Check


class Branch(NamedTuple):
    """The branch of a union that a value most likely means."""

    number: int
    """Its place under the keyword, from 0."""
    name: str
    """A constant that the branch requires, its title or its type; its number if it has none of them."""
    is_meant: bool
    """Whether the value has the constants of this branch, and of no other."""


class _Score(NamedTuple):
    """The evidence for a branch, the strongest first."""

    suits: bool
    right: int = 0
    wrong: int = 0
    missing: int = 0
    known: int = 0
    held: int = 0


def likeliest(check: Check, branches: list[Part], value: Any, holds: Callable[[Schema, str, Any], bool]) -> Branch:
    """Choose the branch; the first of equal ones."""
    resolved = [check.resolved(*branch) for branch in branches]
    scores = [_score(check, branch, value, holds) for branch in resolved]
    number = scores.index(max(scores))
    meant = [each for each in scores if each.right and not each.wrong]
    return Branch(number, _name_of(resolved[number][0], number), meant == [scores[number]])


def _score(check: Check, branch: Part, value: Any, holds: Callable[[Schema, str, Any], bool]) -> _Score:
    sub, pointer = branch
    suits = kind_of(value) in check.kinds(sub, pointer)
    if isinstance(sub, bool) or not isinstance(value, dict):
        return _Score(suits)
    given = [is_same(value[key], constant) for key, constant in constants_of(sub).items() if key in value]
    missing = sum(key not in value for key in sub.get("required") or ())
    known = [holds(*part, member) for part, member, _ in check.children(sub, pointer, value)]
    return _Score(suits, given.count(True), -given.count(False), -missing, len(known), sum(known))


def _name_of(sub: Schema, number: int) -> str:
    if isinstance(sub, dict):
        constant = next(iter(constants_of(sub).items()), None)
        if constant is not None:
            return f"{constant[0]} {json.dumps(constant[1], ensure_ascii=False)}"
        named = sub.get("title") or sub.get("type")
        if isinstance(named, str):
            return named
    return f"branch {number}"
