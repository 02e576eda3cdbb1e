"""The schema, compiled once: the strict check at the end (rule 13), and the oracle that every branch is asked of.

It must not change a value. In: a JSON schema (2020-12, formats asserted); out: yes or no, the first few errors, and the places of the
schema that a value's places belong to. Patterns run on a linear engine; those it cannot hold, on one with a low limit.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import jsonschema_rs

from flujo_worker.aros.outcome import BAD_SCHEMA, LIMIT, Refused
from flujo_worker.aros.rewrite import changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_ROOT: Final = "urn:flujo:schema"
_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_FEW: Final = 16
_SMALL: Final = 300
_BACKTRACKS: Final = 1000
_LONGEST_CHAIN: Final = 64
ALL_KINDS: Final = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})

Schema = dict[str, Any] | bool


class Check:
    """One compiled schema.

    Raises:
        Refused: for a schema that cannot be compiled, or that refers to itself without end.
    """

    def __init__(self, schema: Schema) -> None:
        self.root = schema
        self._branches: dict[int, tuple[Schema, Callable[[Any], bool]]] = {}
        try:
            self._validator = _compiled(changed(schema, _naming), None)
            self._registry = jsonschema_rs.Registry([(_ROOT, schema)])
        except (ValueError, RecursionError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as cause:
            raise Refused(BAD_SCHEMA, f"the schema cannot be used: {str(cause)[:200]}", stage="semantic") from cause
        self.is_valid: Callable[[Any], bool] = self._validator.is_valid
        _refuse_loops(self)

    def valid(self, value: Any) -> bool:
        """Tell whether the whole schema holds; text that is no text (half a surrogate pair) never does."""
        return _asked(self.is_valid, value)

    def errors(self, value: Any) -> list[jsonschema_rs.ValidationError]:
        """Give the first few errors; the first alone of a large value, for the checker makes all of them before it gives one."""
        try:
            if _is_small(value):
                return list(islice(self._validator.iter_errors(value), _FEW))
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as first:
            return [first]
        except ValueError:
            pass
        return []

    def every_error(self, value: Any) -> list[jsonschema_rs.ValidationError]:
        """Give all errors; each may repeat a large part of the value."""
        return list(self._validator.iter_errors(value))

    def holds(self, sub: Schema, pointer: str, value: Any) -> bool:
        """Tell whether one part of the schema holds for one part of the value.

        Args:
            sub: the part.
            pointer: its place in the root schema.
            value: what it is asked of.
        """
        known = self._branches.get(id(sub))
        if known is None:
            validator = _compiled({"$schema": _DRAFT, "$ref": f"{_ROOT}#{_escaped(pointer)}"}, self._registry)
            known = self._branches[id(sub)] = (sub, validator.is_valid)
        return _asked(known[1], value)

    def resolved(self, sub: Schema, pointer: str) -> tuple[Schema, str]:
        """Follow `$ref` to the part it names; a part with other keywords beside the reference stays itself.

        Raises:
            Refused: for a chain of references without end.
        """
        for _ in range(_LONGEST_CHAIN):
            target = sub.get("$ref") if isinstance(sub, dict) else None
            if not isinstance(target, str) or not isinstance(sub, dict) or not _only_a_reference(sub):
                return sub, pointer
            found = self.referred(target)
            if found is None:
                return sub, pointer
            sub, pointer = found
        raise Refused(LIMIT, "the schema refers to itself without end", stage="semantic")

    def referred(self, target: str) -> tuple[Schema, str] | None:
        """Find what a local reference names; None for one that leaves the document, which only the checker follows."""
        if not target.startswith("#") or (len(target) > 1 and target[1] != "/"):
            return None
        part: Any = self.root
        for step in target[1:].split("/")[1:]:
            key = step.replace("%25", "%").replace("%22", '"').replace("%20", " ").replace("~1", "/").replace("~0", "~")
            if isinstance(part, dict) and key in part:
                part = part[key]
            elif isinstance(part, list) and key.isascii() and key.isdigit() and int(key) < len(part):
                part = part[int(key)]
            else:
                return None
        return (part, target[1:]) if isinstance(part, dict | bool) else None

    def kinds(self, sub: Schema | None = None, pointer: str = "", seen: int = 0) -> frozenset[str]:
        """Tell which types of value the schema could take, as far as its `type`, members and branches say."""
        sub, pointer = self.resolved(self.root if sub is None else sub, pointer)
        if isinstance(sub, bool) or seen > _LONGEST_CHAIN:
            return ALL_KINDS
        found = frozenset(types_of(sub)) or ALL_KINDS
        for keyword in ("anyOf", "oneOf"):
            branches = list(parts(sub, pointer, keyword))
            if branches:
                found &= frozenset().union(*(self.kinds(*branch, seen + 1) for branch in branches))
        for branch in parts(sub, pointer, "allOf"):
            found &= self.kinds(*branch, seen + 1)
        if "$ref" in sub and (target := self.referred(sub["$ref"])) is not None:
            found &= self.kinds(*target, seen + 1)
        return found | ({"integer"} if "number" in found else frozenset())


def _naming(schema: dict[str, Any]) -> dict[str, Any]:
    """Have the checker name what is unexpected: in an object without `properties` it tells one value, and not whose."""
    return {"properties": {}, **schema} if schema.get("additionalProperties") is False else schema


def _is_small(value: Any) -> bool:
    """Tell whether a value has only so many parts; counting stops there."""
    pending, parts_seen = [value], 0
    while pending and parts_seen <= _SMALL:
        part = pending.pop()
        parts_seen += 1
        pending.extend(part.values() if isinstance(part, dict) else part if isinstance(part, list) else ())
    return parts_seen <= _SMALL


def types_of(sub: Mapping[str, Any]) -> list[str]:
    """Give the types a schema names itself, in its order, those of its members when it only lists members."""
    named = sub.get("type")
    if isinstance(named, str):
        return [named]
    if isinstance(named, list):
        return named
    members = sub["enum"] if "enum" in sub else [sub["const"]] if "const" in sub else []
    return list(dict.fromkeys(kind_of(member) for member in members))


def kind_of(value: Any) -> str:
    """Name the JSON type of a decoded value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    kinds = ((str, "string"), (int, "integer"), (float, "number"), (dict, "object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "array")


def parts(sub: Mapping[str, Any], pointer: str, keyword: str) -> Iterator[tuple[Schema, str]]:
    """Give the branches under a keyword, each with its place."""
    for index, branch in enumerate(sub.get(keyword) or ()):
        yield branch, f"{pointer}/{keyword}/{index}"


def step(key: str) -> str:
    """Write a key as one step of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _only_a_reference(sub: Mapping[str, Any]) -> bool:
    return all(
        key in {"$ref", "title", "description", "default", "examples", "$comment", "$defs", "definitions"}
        for key in sub
    )


def _asked(question: Callable[[Any], bool], value: Any) -> bool:
    try:
        return question(value)
    except (ValueError, RecursionError):
        return False


def _compiled(schema: Schema, registry: jsonschema_rs.Registry | None) -> Any:
    build = jsonschema_rs.Draft202012Validator
    try:
        return build(
            schema, validate_formats=True, registry=registry, pattern_options=jsonschema_rs.RegexOptions(), offline=True
        )
    except jsonschema_rs.ValidationError:
        options = jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKS)
        return build(schema, validate_formats=True, registry=registry, pattern_options=options, offline=True)


def _escaped(pointer: str) -> str:
    return "".join(
        char if char.isalnum() or char in "/~$_-." else "".join(f"%{byte:02X}" for byte in char.encode())
        for char in pointer
    )


def _refuse_loops(check: Check) -> None:
    """A chain of bare references that comes back to itself says nothing, and the checker would take anything for it."""
    pending: list[tuple[Any, str]] = [(check.root, "")]
    while pending:
        part, pointer = pending.pop()
        if isinstance(part, dict):
            if "$ref" in part:
                check.resolved(part, pointer)
            pending.extend((child, "") for child in part.values())
        elif isinstance(part, list):
            pending.extend((child, "") for child in part)
