"""Find the first few faults of a value by a schema, in bounded work.

Pure. It checks only whether parts of a compiled schema hold, and follows one branch of each union: the one that the value most likely
means, by its constants, its type, and its members. So the work is proportional to the value, not to the number of paths through the schema.
It must not decide whether a value is valid: a `Check` does. In: a check and a value that it rejects. Out: `SchemaFault`s, at least one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from flujo_client.schemas.branches import Branch, likeliest
from flujo_client.schemas.parts import Schema, kind_of, parts, size_of, step
from flujo_client.schemas.schema import Check

Path = tuple[str | int, ...]
MOST: Final = 16
WORK: Final = 10_000
"""The number of parts that one walk checks, in addition to eight times those of the value."""
DEEPEST: Final = 300
"""Keys and indexes in a path that is still followed."""

UNEXPECTED: Final = frozenset({"additionalProperties", "unevaluatedProperties"})
_LARGE: Final = 2_000_000
UNKNOWN_RULE: Final = "schema"
"""The keyword of a fault where it is not known which rule is broken."""
_SMALL: Final = 300
_WHOLE: Final = frozenset({"enum", "const", "uniqueItems"})
"""Rules that examine all of a container; its other own rules examine its keys or its length."""


@dataclass(frozen=True, slots=True)
class SchemaFault:
    """One place where a value breaks a rule."""

    path: Path
    """Keys and indexes of the place."""
    keyword: str
    message: str
    """The message of the checker, which may repeat the value."""
    found: Any
    """The value at the place."""
    rule: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of the rule."""
    branch: Branch | None = None
    """For a union of which no branch holds, the likely branch; the faults of that branch follow."""


class _Place(NamedTuple):
    sub: Schema
    pointer: str
    value: Any
    path: Path
    is_guess: bool = False
    """It is in a branch that the value may not have meant: unions inside it are not reported."""


def faults(check: Check, value: Any, most: int = MOST) -> list[SchemaFault]:
    """Return the first few faults of a value; none if it holds."""
    return [] if check.valid(value) else _Walk(check, value, most).run()


def most_specific(found: Iterable[SchemaFault]) -> list[SchemaFault]:
    """Leave out unions whose branch is plain, for the faults of that branch say more; one fault is always left."""
    found = list(found)
    return [each for each in found if each.branch is None or not each.branch.is_meant] or found[:1]


class _Spent(Exception):
    """The walk has used up its budget."""


class _Walk:
    """One walk down from the root, depth first, in the schema's order; unions are not counted."""

    def __init__(self, check: Check, value: Any, most: int) -> None:
        self.check, self.most = check, most
        self.left = WORK + 8 * size_of(value, _LARGE)
        self.seen: set[tuple[int, Path]] = set()
        self.found: list[SchemaFault] = []
        self.counted = 0
        self.pending = [_Place(check.root, "", value, ())]

    def run(self) -> list[SchemaFault]:
        while self.pending and self.counted < self.most:
            place = self._resolved(self.pending.pop())
            if (key := (id(place.sub), place.path)) in self.seen:
                continue
            self.seen.add(key)
            try:
                own, below = self._looked_at(place)
            except _Spent:
                own, below = [_of_unknown_rule(place)], []
                self.pending.clear()
            own = own or ([] if below else [_of_unknown_rule(place)])
            self.counted += sum(each.branch is None for each in own)
            self.found += [each for each in own if each.branch is None or not place.is_guess]
            self.pending += reversed(below)
        return self.found or [_of_unknown_rule(_Place(self.check.root, "", None, ()))]

    def _looked_at(self, place: _Place) -> tuple[list[SchemaFault], list[_Place]]:
        """Return the rules that the schema itself has broken here, and the parts below it that do not hold."""
        if isinstance(place.sub, bool):
            return [_fault(place, "falseSchema", "nothing is allowed here")], []
        if len(place.path) >= DEEPEST:
            return [], []
        below: list[_Place] = []
        own = [*self._own(place.sub, place), *self._of_members(place.sub, place, below)]
        own += self._applied(place.sub, place, below)
        if not own and not below:
            own = list(self._unevaluated(place.sub, place))
        return own, below

    # --- the schema's own rules

    def _own(self, sub: dict[str, Any], place: _Place) -> Iterator[SchemaFault]:
        rules = self.check.own_rules(sub)
        if rules is None:
            return
        value = place.value
        if not (sub.keys() & _WHOLE) and size_of(value, _SMALL) >= _SMALL:
            value = dict.fromkeys(value) if isinstance(value, dict) else [None] * len(value)
        self._spend(value)
        try:
            errors = list(rules.iter_errors(value))
        except (ValueError, RecursionError):
            errors = []
        for error in errors:
            path = (*place.path, *error.instance_path)
            found = place.value if path == place.path else error.instance
            yield SchemaFault(path, error.kind.name, str(error.message), found, error.kind.as_dict())

    # --- what the schema says of the parts of a value

    def _of_members(self, sub: dict[str, Any], place: _Place, below: list[_Place]) -> Iterator[SchemaFault]:
        children = _children(self.check, sub, place)
        below += islice((child for child in children if not self._holds(child)), self.most)
        if isinstance(place.value, list) and "contains" in sub:
            wanted = _Place(sub["contains"], f"{place.pointer}/contains", None, ())
            held = sum(self._holds(wanted._replace(value=each)) for each in place.value)
            if not sub.get("minContains", 1) <= held <= sub.get("maxContains", held):
                yield _fault(place, "contains", f"{held} items match the 'contains' schema")
        if isinstance(place.value, dict) and "propertyNames" in sub:
            names = _Place(sub["propertyNames"], f"{place.pointer}/propertyNames", None, ())
            for key in place.value:
                if not self._holds(names._replace(value=key)):
                    yield _fault(place, "propertyNames", f"{key!r} is not allowed as a name")

    # --- what further schemas say of the same value

    def _applied(self, sub: dict[str, Any], place: _Place, below: list[_Place]) -> Iterator[SchemaFault]:
        below += [part for part in self._demanded(sub, place) if not self._holds(part)]
        for keyword in ("anyOf", "oneOf"):
            branches = [place._replace(sub=each, pointer=where) for each, where in parts(sub, place.pointer, keyword)]
            held = sum(map(self._holds, branches)) if keyword == "oneOf" else any(map(self._holds, branches))
            if branches and not held:
                branch = likeliest(
                    self.check, [(each.sub, each.pointer) for each in branches], place.value, self._check_holds
                )
                below.append(branches[branch.number]._replace(is_guess=place.is_guess or not branch.is_meant))
                yield _fault(place, keyword, _FITS_NONE.format(_written(place.value), keyword), branch=branch)
            elif held > 1:
                yield _fault(
                    place,
                    keyword,
                    f"{_written(place.value)} is valid under more than one of the schemas listed in the 'oneOf' keyword",
                )
        if "not" in sub and self._holds(place._replace(sub=sub["not"], pointer=f"{place.pointer}/not")):
            yield _fault(
                place, "not", f"{_written(place.value)} matches the schema under 'not'", {"schema": sub["not"]}
            )

    def _demanded(self, sub: dict[str, Any], place: _Place) -> Iterator[_Place]:
        """Return the schemas that must hold in addition to this one."""
        value, pointer = place.value, place.pointer
        for each, where in self.check.demanded(sub, pointer):
            yield place._replace(sub=each, pointer=where)
        if "if" in sub:
            chosen = "then" if self._holds(place._replace(sub=sub["if"], pointer=f"{pointer}/if")) else "else"
            if chosen in sub:
                yield place._replace(sub=sub[chosen], pointer=f"{pointer}/{chosen}")
        for key, each in (sub.get("dependentSchemas") or {}).items() if isinstance(value, dict) else ():
            if key in value:
                yield place._replace(sub=each, pointer=f"{pointer}/dependentSchemas/{step(key)}")

    def _unevaluated(self, sub: dict[str, Any], place: _Place) -> Iterator[SchemaFault]:
        if isinstance(place.value, dict) and "unevaluatedProperties" in sub:
            known = self._evaluated(sub, place, set())
            rest = _Place(sub["unevaluatedProperties"], f"{place.pointer}/unevaluatedProperties", None, ())
            unknown = [key for key in place.value if key not in known]
            keys = [key for key in unknown if not self._holds(rest._replace(value=place.value[key]))]
            if keys:
                listed = ", ".join(map(repr, keys))
                message = f"Unevaluated properties are not allowed ({listed} {'was' if len(keys) == 1 else 'were'} unexpected)"
                yield _fault(place, "unevaluatedProperties", message, {"unexpected": keys})

    def _evaluated(self, sub: Schema, place: _Place, seen: set[int]) -> set[str]:
        """Return the members that the schema names, or another one that applies to the same value and holds."""
        if isinstance(sub, bool) or id(sub) in seen:
            return set()
        seen.add(id(sub))
        known = {child.path[-1] for child in _children(self.check, sub, place) if isinstance(child.path[-1], str)}
        known |= set(place.value) if sub.get("additionalProperties") is not None else set()
        beside = [*self._demanded(sub, place)]
        for keyword in ("anyOf", "oneOf"):
            beside += [place._replace(sub=each, pointer=at) for each, at in parts(sub, place.pointer, keyword)]
        for each in beside:
            if self._holds(each):
                resolved = self._resolved(each)
                nested = isinstance(resolved.sub, dict) and "unevaluatedProperties" in resolved.sub
                known |= set(place.value) if nested else self._evaluated(resolved.sub, resolved, seen)
        return known

    # --- questions

    def _holds(self, place: _Place) -> bool:
        if isinstance(place.sub, bool):
            return place.sub
        return self._check_holds(place.sub, place.pointer, place.value)

    def _check_holds(self, sub: Schema, pointer: str, value: Any) -> bool:
        self._spend(value)
        return self.check.holds(sub, pointer, value)

    def _resolved(self, place: _Place) -> _Place:
        sub, pointer = self.check.resolved(place.sub, place.pointer)
        return place._replace(sub=sub, pointer=pointer)

    def _spend(self, value: Any) -> None:
        self.left -= size_of(value, self.left + 1)
        if self.left < 0:
            raise _Spent


_FITS_NONE: Final = "{} is not valid under any of the schemas listed in the '{}' keyword"


def _children(check: Check, sub: dict[str, Any], place: _Place) -> Iterator[_Place]:
    for (part, pointer), value, key in check.children(sub, place.pointer, place.value):
        yield place._replace(sub=part, pointer=pointer, value=value, path=(*place.path, key))


def _fault(
    place: _Place, keyword: str, message: str, rule: Mapping[str, Any] | None = None, branch: Branch | None = None
) -> SchemaFault:
    return SchemaFault(place.path, keyword, message, place.value, rule or {}, branch)


def _of_unknown_rule(place: _Place) -> SchemaFault:
    """Return a fault without details, where no more is known: too deep, too large, or a rule that is not examined."""
    keyword = "unevaluatedItems" if isinstance(place.sub, dict) and "unevaluatedItems" in place.sub else UNKNOWN_RULE
    return _fault(place, keyword, "the value does not match the schema")


def _written(value: Any) -> str:
    if size_of(value, _SMALL) >= _SMALL:
        return kind_of(value)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if len(text) <= _SMALL else f"{text[:_SMALL]}…"
