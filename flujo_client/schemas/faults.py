"""Find the first few faults of a value by a schema, in bounded work. Pure. A `Check` decides whether the value is valid.

One branch of each union is followed: the one that the value most likely means, by its constants, its type, and its members. So the work is
proportional to the value, not to the number of paths through the schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from flujo_client.schemas.parts import Part, Schema, constants_of, is_same, kind_of, parts, size_of, step
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


class Branch(NamedTuple):
    """The branch of a union that a value most likely means."""

    number: int
    """Its place under the keyword, from 0."""
    name: str
    """A constant that the branch requires, its title or its type; its number if it has none of them."""
    is_meant: bool
    """Whether the value has the constants of this branch, and of no other."""


@dataclass(frozen=True, slots=True)
class SchemaFault:
    """One place where a value breaks a rule."""

    path: Path
    keyword: str
    message: str
    """The message of the checker, which may repeat the value."""
    found: Any
    """The value at the place."""
    rule: Mapping[str, Any] = field(default_factory=dict)
    branch: Branch | None = None
    """For a union of which no branch holds, the likely branch; the faults of that branch follow."""


class _Place(NamedTuple):
    sub: Any
    pointer: str
    value: Any
    path: Path
    is_guess: bool = False
    """It is in a branch that the value may not have meant: unions inside it are not reported."""

    def at(self, keyword: str) -> _Place:
        return self._replace(sub=self.sub[keyword], pointer=f"{self.pointer}/{keyword}")


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
            place = self.pending.pop()
            sub, pointer = self.check.resolved(place.sub, place.pointer)
            place = place._replace(sub=sub, pointer=pointer)
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
        own = [*self._own(place), *self._of_members(place, below), *self._applied(place, below)]
        if not own and not below and "unevaluatedProperties" in place.sub and isinstance(place.value, dict):
            # Everything else holds, so no other errors are listed.
            own = self._listed(self.check.compiled_part(place.sub, place.pointer), place, place.value)
        return own, below

    def _own(self, place: _Place) -> list[SchemaFault]:
        """Return which rules that look no deeper than the value are broken."""
        rules, value = self.check.own_rules(place.sub), place.value
        if not (place.sub.keys() & _WHOLE) and size_of(value, _SMALL) >= _SMALL:
            value = dict.fromkeys(value) if isinstance(value, dict) else [None] * len(value)
        return [] if rules is None else self._listed(rules, place, value)

    def _listed(self, rules: Any, place: _Place, value: Any) -> list[SchemaFault]:
        self._spend(value)
        try:
            errors = list(rules.iter_errors(value))
        except (ValueError, RecursionError):
            return []
        faults = []
        for error in errors:
            found = error.instance if error.instance_path else place.value
            path = (*place.path, *error.instance_path)
            faults.append(SchemaFault(path, error.kind.name, str(error.message), found, error.kind.as_dict()))
        return faults

    def _of_members(self, place: _Place, below: list[_Place]) -> Iterator[SchemaFault]:
        """Yield what the schema says of the parts of a value, and collect those that do not hold."""
        children = self.check.children(place.sub, place.pointer, place.value)
        parts_of = (_Place(*part, value, (*place.path, key), place.is_guess) for part, value, key in children)
        below += islice((part for part in parts_of if not self._holds(part)), self.most)
        if isinstance(place.value, list) and "contains" in place.sub:
            wanted, sub = place.at("contains"), place.sub
            held = sum(self._holds(wanted._replace(value=each)) for each in place.value)
            if not sub.get("minContains", 1) <= held <= sub.get("maxContains", held):
                yield _fault(place, "contains", f"{held} items match the 'contains' schema")
        if isinstance(place.value, dict) and "propertyNames" in place.sub:
            names = place.at("propertyNames")
            for key in place.value:
                if not self._holds(names._replace(value=key)):
                    yield _fault(place, "propertyNames", f"{key!r} is not allowed as a name")

    def _applied(self, place: _Place, below: list[_Place]) -> Iterator[SchemaFault]:
        """Yield what further schemas say of the same value, and collect those that do not hold."""
        below += [part for part in self._demanded(place) if not self._holds(part)]
        for keyword in ("anyOf", "oneOf"):
            branches = [place._replace(sub=each, pointer=at) for each, at in parts(place.sub, place.pointer, keyword)]
            held = sum(map(self._holds, branches)) if keyword == "oneOf" else any(map(self._holds, branches))
            if branches and not held:
                branch = _likeliest(self.check, [each[:2] for each in branches], place.value, self._check_holds)
                below.append(branches[branch.number]._replace(is_guess=place.is_guess or not branch.is_meant))
                why = f"is not valid under any of the schemas listed in the '{keyword}' keyword"
                yield _fault(place, keyword, f"{_written(place.value)} {why}", branch=branch)
            elif held > 1:
                why = "is valid under more than one of the schemas listed in the 'oneOf' keyword"
                yield _fault(place, keyword, f"{_written(place.value)} {why}")
        if "not" in place.sub and self._holds(place.at("not")):
            message = f"{_written(place.value)} matches the schema under 'not'"
            yield _fault(place, "not", message, {"schema": place.sub["not"]})

    def _demanded(self, place: _Place) -> Iterator[_Place]:
        """Return the schemas that must hold in addition to this one."""
        for each, where in self.check.demanded(place.sub, place.pointer):
            yield place._replace(sub=each, pointer=where)
        if "if" in place.sub and (chosen := "then" if self._holds(place.at("if")) else "else") in place.sub:
            yield place.at(chosen)
        for key, each in (place.sub.get("dependentSchemas") or {}).items() if isinstance(place.value, dict) else ():
            if key in place.value:
                yield place._replace(sub=each, pointer=f"{place.pointer}/dependentSchemas/{step(key)}")

    def _holds(self, place: _Place) -> bool:
        return place.sub if isinstance(place.sub, bool) else self._check_holds(*place[:3])

    def _check_holds(self, sub: Schema, pointer: str, value: Any) -> bool:
        self._spend(value)
        return self.check.holds(sub, pointer, value)

    def _spend(self, value: Any) -> None:
        self.left -= size_of(value, self.left + 1)
        if self.left < 0:
            raise _Spent


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


class _Score(NamedTuple):
    """The evidence for a branch, the strongest first."""

    suits: bool
    right: int = 0
    wrong: int = 0
    missing: int = 0
    known: int = 0
    held: int = 0


def _likeliest(check: Check, branches: list[Part], value: Any, holds: Callable[[Schema, str, Any], bool]) -> Branch:
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
