"""Check values by schemas whose alternatives overlap on several levels, in time proportional to schema and value.

jsonschema-rs checks each alternative of a union again: if two of them check the same parts below, the checks double with every level (ADR
26). Here each part of the schema is checked once for each part of the value; checks of a single part are left to jsonschema-rs. Pure. In: a
`Check` and a value; out: whether a part of the schema holds for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flujo_client.schemas.schema import Check, Part, Schema

MOST_LOOKS: Final = 4096
"""Checks of one part of a value up to which jsonschema-rs is used alone."""
LEVELS: Final = 24
"""Levels of a schema that refers to itself which are counted."""

_UNIONS: Final = ("anyOf", "oneOf")
_MEMBERS: Final = ("properties", "patternProperties")
_REST: Final = ("items", "additionalProperties")
_BELOW: Final = frozenset({"$ref", "allOf", "prefixItems", "$defs", "definitions", *_UNIONS, *_MEMBERS, *_REST})
_WHOLE: Final = frozenset(
    [
        "not",
        "if",
        "then",
        "else",
        "contains",
        "propertyNames",
        "dependentSchemas",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
    ]
)
"""Keywords that are checked with everything below them."""

Known = dict[tuple[int, int], tuple[Any, bool]]
"""The known results, by part of the schema and part of the value; the value is referenced so that its `id` is not reused."""


class Overlap:
    """One schema's parts, checked once for each part of a value."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._looks: dict[tuple[int, int], int] = {}
        self._own: dict[int, Any] = {}
        self._known: Known = {}
        self.is_costly = _has_wide_union(check.root) and self._count((check.root, ""), LEVELS) > MOST_LOOKS

    def is_valid(self, value: Any) -> bool:
        """Return whether the whole schema holds for a value; results for its parts are cached until the next one."""
        self._known = {}
        return self.holds(self._check.root, "", value)

    def holds(self, sub: Schema, place: str, value: Any) -> bool:
        """Return whether a part of the schema holds for a value, which must not have changed since it was checked."""
        return self._asked((sub, place), value, self._known)

    def _asked(self, part: Part, value: Any, known: Known) -> bool:
        sub, place = self._check.resolved(*part)
        if isinstance(sub, bool):
            return sub
        key = (id(sub), id(value))
        found = known.get(key)
        if found is None or found[0] is not value:
            known[key] = value, True  # found again through a reference: it adds nothing
            known[key] = found = value, self._answer(sub, place, value, known)
        return found[1]

    def _answer(self, sub: dict[str, Any], place: str, value: Any, known: Known) -> bool:
        if not _WHOLE.isdisjoint(sub):
            return self._check.natively(sub, place, value)
        if not self._own_rules(sub).is_valid(value):
            return False
        if "$ref" in sub:
            target = self._check.referred(sub["$ref"])
            if not (self._asked(target, value, known) if target else self._check.natively(sub, place, value)):
                return False
        if not all(self._asked(branch, value, known) for branch in _parts(sub, place, "allOf")):
            return False
        for keyword in _UNIONS:
            if keyword in sub and not self._fits_union(sub, place, keyword, value, known):
                return False
        return all(self._asked(below, member, known) for below, member in self._check.below(sub, place, value))

    def _fits_union(self, sub: dict[str, Any], place: str, keyword: str, value: Any, known: Known) -> bool:
        fitting = (branch for branch in _parts(sub, place, keyword) if self._asked(branch, value, known))
        found = next(fitting, None) is not None
        return found and (keyword == "anyOf" or next(fitting, None) is None)

    def _own_rules(self, sub: dict[str, Any]) -> Any:
        known = self._own.get(id(sub))
        if known is None:
            rules = {name: rule for name, rule in sub.items() if name not in _BELOW and not name.startswith("$")}
            if sub.get("additionalProperties") is False:
                rules |= {name: dict.fromkeys(sub.get(name) or {}, True) for name in _MEMBERS}
                rules["additionalProperties"] = False
            if sub.get("items") is False:
                rules |= {"prefixItems": [True] * len(sub.get("prefixItems") or ()), "items": False}
            known = self._own[id(sub)] = self._check.compiled(rules)
        return known

    def _count(self, part: Part, levels: int) -> int:
        """Count how often one part of a value is checked at most, so many levels below."""
        sub, place = self._check.resolved(*part)
        if isinstance(sub, bool) or not levels:
            return 1
        key = (id(sub), levels)
        if key not in self._looks:
            self._looks[key] = 1  # found again through a reference
            counts = [self._count(each, levels - 1) for each in _descending(sub, place)]
            counts += [self._count(each, levels) for each in _parts(sub, place, "allOf")]
            if (target := self._check.referred(sub["$ref"]) if isinstance(sub.get("$ref"), str) else None) is not None:
                counts.append(self._count(target, levels))
            counts += [self._count_union(list(_parts(sub, place, keyword)), levels) for keyword in _UNIONS]
            self._looks[key] = max(counts, default=1)
        return self._looks[key]

    def _count_union(self, branches: list[Part], levels: int) -> int:
        counted = [(self._check.resolved(*each)[0], self._count(each, levels)) for each in branches]
        most = 1
        for kind in ("object", "array"):
            asked = [(sub, count) for sub, count in counted if kind in self._check.kinds(sub)]
            are_distinct = kind == "object" and _are_tagged([sub for sub, _ in asked])
            counts = [count for _, count in asked]
            most = max(most, max(counts, default=1) if are_distinct else sum(counts))
        return min(most, 1 << 64)


def _has_wide_union(root: Any) -> bool:
    """Return whether some union has two alternatives that look below the value itself."""
    pending = [root]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            for keyword in _UNIONS:
                branches = part.get(keyword)
                if isinstance(branches, list) and sum(map(_looks_below, branches)) > 1:
                    return True
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
    return False


def _looks_below(branch: Any) -> bool:
    return isinstance(branch, dict) and not _BELOW.isdisjoint(branch)


def tags_of(sub: Any) -> Mapping[str, list[Any]]:
    """Give the members for which an object's schema names the values that they may have."""
    properties = sub.get("properties") if isinstance(sub, dict) else None
    found = {}
    for name, member in (properties or {}).items():
        if isinstance(member, dict) and ("const" in member or isinstance(member.get("enum"), list)):
            found[name] = [member["const"]] if "const" in member else member["enum"]
    return found


def _are_tagged(branches: list[Any]) -> bool:
    """Return whether some member always says which branch is meant."""
    tags = [tags_of(each) for each in branches]
    names = set.intersection(*map(set, tags)) if tags else set()
    return any(all(not _same_value(one[name], other[name]) for one, other in combinations(tags, 2)) for name in names)


def _same_value(one: list[Any], other: list[Any]) -> bool:
    return any(a == b and type(a) is type(b) for a in one for b in other)


def _parts(sub: Mapping[str, Any], place: str, keyword: str) -> Iterator[Part]:
    for index, branch in enumerate(sub.get(keyword) or ()):
        yield branch, f"{place}/{keyword}/{index}"


def _descending(sub: Mapping[str, Any], place: str) -> Iterator[Part]:
    for keyword in _MEMBERS:
        for name, member in (sub.get(keyword) or {}).items():
            yield member, f"{place}/{keyword}/{name.replace('~', '~0').replace('/', '~1')}"
    yield from _parts(sub, place, "prefixItems")
    for keyword in _REST:
        if isinstance(sub.get(keyword), dict):
            yield sub[keyword], f"{place}/{keyword}"
