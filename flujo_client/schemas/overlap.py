"""Check values by schemas whose alternatives overlap on several levels, in time proportional to schema and value. Pure.

jsonschema-rs checks each alternative of a union again: if two of them check the same parts below, the checks double with every level (ADR
26). Here each part of the schema is checked once for each part of the value; checks of a single part are left to jsonschema-rs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from flujo_client.schemas.parts import Part, Schema, mappings_in, parts, step, telling

if TYPE_CHECKING:
    from flujo_client.schemas.schema import Check

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
        *("not", "if", "then", "else", "contains", "propertyNames", "dependentSchemas"),
        *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef"),
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
        if not _WHOLE.isdisjoint(sub) or ("$ref" in sub and self._check.referred(sub["$ref"]) is None):
            return self._check.natively(sub, place, value)
        own = self._check.own_rules(sub)
        return (
            (own is None or own.is_valid(value))
            and all(self._asked(each, value, known) for each in self._check.demanded(sub, place))
            and all(self._fits_union(sub, place, each, value, known) for each in _UNIONS if each in sub)
            and all(self._asked(below, member, known) for below, member, _ in self._check.children(sub, place, value))
        )

    def _fits_union(self, sub: dict[str, Any], place: str, keyword: str, value: Any, known: Known) -> bool:
        fitting = (True for branch in parts(sub, place, keyword) if self._asked(branch, value, known))
        return any(fitting) and (keyword == "anyOf" or not any(fitting))

    def _count(self, part: Part, levels: int) -> int:
        """Count how often one part of a value is checked at most, so many levels below."""
        sub, place = self._check.resolved(*part)
        if isinstance(sub, bool) or not levels:
            return 1
        key = (id(sub), levels)
        if key not in self._looks:
            self._looks[key] = 1  # found again through a reference
            counts = [self._count(each, levels - 1) for each in _descending(sub, place)]
            counts += [self._count(each, levels) for each in self._check.demanded(sub, place)]
            counts += [self._count_union(list(parts(sub, place, keyword)), levels) for keyword in _UNIONS]
            self._looks[key] = max(counts, default=1)
        return self._looks[key]

    def _count_union(self, branches: list[Part], levels: int) -> int:
        counted = [(self._check.resolved(*each)[0], self._count(each, levels)) for each in branches]
        most = 1
        for kind in ("object", "array"):
            asked = [(sub, count) for sub, count in counted if kind in self._check.kinds(sub)]
            are_distinct = kind == "object" and bool(telling([sub for sub, _ in asked]))
            counts = [count for _, count in asked]
            most = max(most, max(counts, default=1) if are_distinct else sum(counts))
        return min(most, 1 << 64)


def _has_wide_union(root: Any) -> bool:
    """Return whether some union has two alternatives that look below the value itself."""
    unions = (part.get(keyword) for part in mappings_in(root) for keyword in _UNIONS)
    lists = (union for union in unions if isinstance(union, list))
    return any(sum(isinstance(each, dict) and bool(_BELOW & each.keys()) for each in union) > 1 for union in lists)


def _descending(sub: Mapping[str, Any], place: str) -> Iterator[Part]:
    for keyword in _MEMBERS:
        for name, member in (sub.get(keyword) or {}).items():
            yield member, f"{place}/{keyword}/{step(name)}"
    yield from parts(sub, place, "prefixItems")
    for keyword in _REST:
        if isinstance(sub.get(keyword), dict):
            yield sub[keyword], f"{place}/{keyword}"
