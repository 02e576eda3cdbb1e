"""A JSON Schema (2020-12), compiled once: the only module that uses jsonschema-rs. No reference is fetched.

It must not have jsonschema-rs list errors of a whole schema: that takes the errors of every branch of nested unions, and in a recursive
schema the value decides how deep they nest (ADR 26). Patterns run on a linear engine; those that need another engine get a low limit on
backtracking.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

import jsonschema_rs

from flujo_client.schemas.overlap import Overlap
from flujo_client.schemas.parts import ALL_KINDS, Part, Schema, mappings_in, parts, step, types_of, without_names

_ROOT: Final = "urn:flujo:schema"
_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_BACKTRACKS: Final = 1000
_LONGEST_CHAIN: Final = 64
_OWN: Final = frozenset(
    [
        *("type", "enum", "const", "format", "pattern", "minLength", "maxLength"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("required", "dependentRequired", "minProperties", "maxProperties", "uniqueItems", "minItems", "maxItems"),
    ]
)
"""Rules that look no deeper than the value itself."""
_ANNOTATIONS: Final = {"$ref", "title", "description", "default", "examples", "$comment", "$defs", "definitions"}
"""Keywords beside a reference that do not restrict the value."""


class UnusableSchema(ValueError):
    """A schema, or a part of one, that cannot be compiled; `is_endless` if that is because it refers to itself without end."""

    def __init__(self, message: str, *, is_endless: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.is_endless = is_endless


class Check:
    """One compiled schema, JSON Schema 2020-12; with `formats` it asserts `format`.

    Attributes:
        is_valid: returns whether the schema holds for a value; raises ValueError for half a surrogate pair.
        is_overlapping: alternatives overlap through so many levels that they are checked part by part.

    Raises:
        UnusableSchema: it cannot be compiled, or it refers to itself without end.
    """

    def __init__(self, schema: Schema, *, formats: bool = True) -> None:
        self.root = schema
        self._formats = formats
        self._parts: dict[int, tuple[Schema, Any]] = {}
        self._own_rules: dict[int, tuple[Schema, Any]] = {}
        self._kinds: dict[int, frozenset[str]] = {}
        self._patterns: dict[str, Callable[[Any], bool]] = {}
        try:
            validator = self.compiled(schema)
            self._registry = jsonschema_rs.Registry([(_ROOT, schema)])
        except (ValueError, RecursionError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as cause:
            raise UnusableSchema(f"the schema cannot be used: {str(cause)[:200]}") from cause
        for part in mappings_in(schema):  # the checker would accept anything for a circular chain of bare references
            self.resolved(part, "")
        self._overlap = Overlap(self)
        self.is_overlapping = self._overlap.is_costly
        self.is_valid: Callable[[Any], bool] = self._overlap.is_valid if self.is_overlapping else validator.is_valid

    def valid(self, value: Any) -> bool:
        """Return whether the value matches the whole schema; half a surrogate pair in a text never does."""
        return _holds(self.is_valid, value)

    def compiled(self, schema: Schema, registry: jsonschema_rs.Registry | None = None) -> Any:
        """Compile a schema the way this one is compiled."""
        build = jsonschema_rs.Draft202012Validator
        given: dict[str, Any] = {"validate_formats": self._formats, "registry": registry, "offline": True}
        try:
            return build(schema, pattern_options=jsonschema_rs.RegexOptions(), **given)
        except jsonschema_rs.ValidationError:
            return build(schema, pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKS), **given)

    def holds(self, sub: Schema, pointer: str, value: Any) -> bool:
        """Return whether one part of the schema, at its place in the root, holds for one part of the value; raises UnusableSchema."""
        if self.is_overlapping:
            return _holds(functools.partial(self._overlap.holds, sub, pointer), value)
        return self.natively(sub, pointer, value)

    def natively(self, sub: Schema, pointer: str, value: Any) -> bool:
        """Ask jsonschema-rs whether one part of the schema holds for one part of the value."""
        return _holds(self.compiled_part(sub, pointer).is_valid, value)

    def compiled_part(self, sub: Schema, pointer: str) -> Any:
        """Compile one part, once; raises UnusableSchema."""
        known = self._parts.get(id(sub))
        if known is None:
            known = self._parts[id(sub)] = (sub, self._part_compiled(pointer))
        return known[1]

    def _part_compiled(self, pointer: str) -> Any:
        """Compile one part. A pointer does not lead through schemas that have names of their own: if it fails, the names are left out."""
        reference = {"$schema": _DRAFT, "$ref": f"{_ROOT}#{quote(pointer, safe='/~$')}"}
        try:
            return self.compiled(reference, self._registry)
        except ValueError:
            unnamed = jsonschema_rs.Registry([(_ROOT, without_names(self.root))])
        try:
            return self.compiled(reference, unnamed)
        except ValueError as cause:
            raise UnusableSchema(f"the schema cannot be used: {str(cause)[:200]}") from cause

    def own_rules(self, sub: dict[str, Any]) -> Any:
        """Compile the rules of one part that look no deeper than itself, whose errors can be listed; None if there are no such rules."""
        known = self._own_rules.get(id(sub))
        if known is None:
            rules = {name: rule for name, rule in sub.items() if name in _OWN}
            if sub.get("additionalProperties") is False:
                rules["additionalProperties"] = False
                for name in ("properties", "patternProperties"):
                    rules[name] = dict.fromkeys(sub.get(name) or {}, True)
            if sub.get("items") is False:
                first = [True] * len(sub.get("prefixItems") or ())
                rules |= {"items": False, **({"prefixItems": first} if first else {})}
            compiled = self.compiled({"$schema": _DRAFT, **rules}) if rules else None
            known = self._own_rules[id(sub)] = (sub, compiled)
        return known[1]

    def members(self, sub: Mapping[str, Any], pointer: str, key: str) -> Iterator[Part]:
        """Return an object's schemas for one member; the schema of remaining members only if no other applies."""
        properties, patterns = sub.get("properties") or {}, sub.get("patternProperties") or {}
        is_named = key in properties
        if is_named:
            yield properties[key], f"{pointer}/properties/{step(key)}"
        for pattern, part in patterns.items():
            if self.matches(pattern, key):
                is_named = True
                yield part, f"{pointer}/patternProperties/{step(pattern)}"
        if not is_named and isinstance(sub.get("additionalProperties"), dict):
            yield sub["additionalProperties"], f"{pointer}/additionalProperties"

    def children(self, sub: Mapping[str, Any], pointer: str, value: Any) -> Iterator[tuple[Part, Any, str | int]]:
        """Return the parts of a value that an object's or a list's schema covers: the schema of each, the part, its key or index."""
        if isinstance(value, dict):
            for key, member in value.items():
                yield from ((part, member, key) for part in self.members(sub, pointer, key))
        elif isinstance(value, list):
            first = list(parts(sub, pointer, "prefixItems"))
            rest: Part = (sub.get("items", True), f"{pointer}/items")
            for index, element in enumerate(value):
                if index >= len(first) and isinstance(rest[0], bool):
                    return
                yield first[index] if index < len(first) else rest, element, index

    def matches(self, pattern: str, key: str) -> bool:
        """Return whether a name matches a pattern of the schema."""
        known = self._patterns.get(pattern)
        if known is None:
            known = self._patterns[pattern] = self.compiled({"$schema": _DRAFT, "pattern": pattern}).is_valid
        return _holds(known, key)

    def resolved(self, sub: Schema, pointer: str) -> Part:
        """Follow `$ref` to the part it names; a part with other keywords beside the reference stays itself. Raises UnusableSchema: without end."""
        for _ in range(_LONGEST_CHAIN):
            target = sub.get("$ref") if isinstance(sub, dict) else None
            if not isinstance(target, str) or not isinstance(sub, dict) or sub.keys() - _ANNOTATIONS:
                return sub, pointer
            if (found := self.referred(target)) is None:
                return sub, pointer
            sub, pointer = found
        raise UnusableSchema("the schema refers to itself without end", is_endless=True)

    def referred(self, target: str) -> Part | None:
        """Find what a local reference names; None for one that leaves the document, which only the checker follows."""
        if not target.startswith("#") or (len(target) > 1 and target[1] != "/"):
            return None
        part: Any = self.root
        for each in target[1:].split("/")[1:]:
            key = each.replace("%25", "%").replace("%22", '"').replace("%20", " ").replace("~1", "/").replace("~0", "~")
            if isinstance(part, dict) and key in part:
                part = part[key]
            elif isinstance(part, list) and key.isascii() and key.isdigit() and int(key) < len(part):
                part = part[int(key)]
            else:
                return None
        return (part, target[1:]) if isinstance(part, dict | bool) else None

    def demanded(self, sub: Mapping[str, Any], pointer: str) -> Iterator[Part]:
        """Yield the parts that must hold for the same value as a part: the target of its local `$ref`, and the parts of `allOf`."""
        if isinstance(sub.get("$ref"), str) and (target := self.referred(sub["$ref"])) is not None:
            yield target
        yield from parts(sub, pointer, "allOf")

    def kinds(self, sub: Schema | None = None, pointer: str = "") -> frozenset[str]:
        """Return the types of value that the schema could take, as far as its `type`, members and branches say."""
        sub, pointer = self.resolved(self.root if sub is None else sub, pointer)
        if isinstance(sub, bool):
            return ALL_KINDS
        if id(sub) not in self._kinds:
            self._kinds[id(sub)] = ALL_KINDS  # found again through a reference: it adds nothing
            self._kinds[id(sub)] = self._kinds_of(sub, pointer)
        return self._kinds[id(sub)]

    def _kinds_of(self, sub: dict[str, Any], pointer: str) -> frozenset[str]:
        found = frozenset(types_of(sub)) or ALL_KINDS
        for keyword in ("anyOf", "oneOf"):
            branches = list(parts(sub, pointer, keyword))
            if branches:
                found &= frozenset().union(*(self.kinds(*branch) for branch in branches))
        for each in self.demanded(sub, pointer):
            found &= self.kinds(*each)
        return found | ({"integer"} if "number" in found else frozenset())


def _holds(question: Callable[[Any], bool], value: Any) -> bool:
    try:
        return question(value)
    except (ValueError, RecursionError):
        return False
