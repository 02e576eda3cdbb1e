"""Walk a decoded value along the schema and apply the allowed conversions.

It must not touch what already fits, or decide whether the value is valid: `check` does, before and after. Bounded in steps; each part of the schema
is checked once for each part of the value.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Final

from flujo_client.contract.processing import ProcessingSettings
from flujo_client.schemas.parts import Schema, kind_of, parts, size_of, types_of
from flujo_client.schemas.schema import Check
from flujo_worker.aros.convert import SCALARS, Alternatives, conversions, fits
from flujo_worker.aros.decode import same
from flujo_worker.aros.outcome import (
    LIMIT,
    NOT_ALLOWED,
    TWO_READINGS,
    Path,
    Refusal,
    StageRefused,
    Transform,
    pointer_of,
)
from flujo_worker.aros.scalars import ParseBudget

DEEPEST: Final = 1000
"""Deeper than any value that was read can be: a schema that refers to itself would be walked without end."""

GLANCES: Final = 5
"""Branches looked at for the price of a step."""

_ELSEWHERE: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_PREVIEW: Final = 80
_FEW: Final = 16


@dataclass(slots=True)
class Coerced:
    """The result of a walk."""

    value: Any
    transforms: tuple[Transform, ...] = ()
    branches: dict[str, int] = field(default_factory=dict)
    """The branch taken, by the pointer of the union."""
    refusals: list[Refusal] = field(default_factory=list)
    """Why useful conversions were not made: path, rule, and message."""


@dataclass(slots=True)
class Coercer:
    """One walk over one value."""

    check: Check
    settings: ProcessingSettings
    budget: ParseBudget
    memo: dict[tuple[int, int, Path], Coerced] = field(default_factory=dict)
    plain: dict[int, tuple[str, ...]] = field(default_factory=dict)
    unions: dict[tuple[int, str], Alternatives] = field(default_factory=dict)

    def run(self, value: Any) -> Coerced:
        """Convert what may be converted; raises StageRefused at the budget's end, or for references without end."""
        return self._at(self.check.root, "", value, ())

    def _at(self, sub: Schema, place: str, value: Any, path: Path) -> Coerced:
        sub, place = self.check.resolved(sub, place)
        if isinstance(sub, bool):
            return Coerced(value)
        key = (id(sub), id(value), path)
        if key not in self.memo:
            self.budget.fit(path)
            if len(path) > DEEPEST:
                raise StageRefused(LIMIT, "nested too deep", path, "semantic")
            self.memo[key] = Coerced(value)  # reached again through a reference: unchanged
            self.memo[key] = self._walked(sub, place, value, path)
        return self.memo[key]

    def _walked(self, sub: dict[str, Any], place: str, value: Any, path: Path) -> Coerced:
        found = self._typed(sub, place, Coerced(value), path)
        for each, where in self.check.demanded(sub, place):
            found = _followed(found, self._at(each, where, found.value, path))
        if self.settings.full:
            for keyword in ("anyOf", "oneOf"):
                found = self._union(sub, place, keyword, found, path)
        return self._inside(sub, place, found, path)

    def _typed(self, sub: dict[str, Any], place: str, found: Coerced, path: Path) -> Coerced:
        types = types_of(sub)
        value = found.value
        if (not types or any(fits(value, kind) for kind in types)) and ("type" in sub or _is_a_member(sub, value)):
            return found
        wanted = [kind for kind in types if kind != "null"]
        if not self.settings.full and (len(wanted) != 1 or wanted[0] not in SCALARS):
            return found
        possible = self._possible(sub, place, value, wanted, path)
        permitted = [one for one in possible if self.settings.permits(one[0], one[1])]
        if not permitted:
            return _refused(found, path, NOT_ALLOWED, possible[0]) if possible else found
        if "type" in sub and len(wanted) > 1:
            permitted = [one for one in permitted if one[0] == permitted[0][0]]
        if any(not same(one[2].value, permitted[0][2].value) for one in permitted):
            return _refused(found, path, TWO_READINGS, permitted[0])
        return _followed(found, permitted[0][2])

    def _possible(
        self, sub: dict[str, Any], place: str, value: Any, wanted: list[str], path: Path
    ) -> list[tuple[str, str, Coerced]]:
        """Yield the conversions that lead to a value: any for scalars without members, else those whose result is valid."""
        found: list[tuple[str, str, Coerced]] = []
        for kind in wanted:
            for name, new in conversions(value, kind):
                done = Coerced(new, (Transform("semantic", name, pointer_of(path), _brief(value), _brief(new)),))
                if kind in {"array", "object"}:
                    done = self._inside(sub, place, done, path)
                    fit = self.check.holds(sub, place, done.value)
                else:
                    fit = _is_a_member(sub, done.value)
                if fit:
                    found.append((kind, name, done))
        return found

    def _union(self, sub: dict[str, Any], place: str, keyword: str, found: Coerced, path: Path) -> Coerced:
        union = self._alternatives(sub, place, keyword)
        plausible = union.may_hold(found.value)
        self.budget.charge_checks(path, len(plausible) * size_of(found.value, self.budget.checks + 1))
        for index in plausible:
            if self.check.holds(*union.parts[index], found.value):
                return _chosen(found, path, index)
        refusals: list[Refusal] = []
        self.budget.fit(path, len(union.parts) // GLANCES)
        for index in union.meant(found.value):
            branch, where = union.parts[index]
            if self._is_hopeless(branch, found.value):
                continue
            tried = self._at(branch, where, found.value, path)
            if tried.transforms and self.check.holds(branch, where, tried.value):
                return _chosen(_followed(found, tried), path, index)
            refusals += tried.refusals
        return replace(found, refusals=found.refusals + refusals)

    def _alternatives(self, sub: dict[str, Any], place: str, keyword: str) -> Alternatives:
        key = (id(sub), keyword)
        if key not in self.unions:
            self.unions[key] = Alternatives(self.check, list(parts(sub, place, keyword)))
        return self.unions[key]

    def _is_hopeless(self, branch: Schema, value: Any) -> bool:
        """Return whether a scalar clearly cannot become what a branch asks for: walking it would find nothing."""
        if isinstance(value, dict | list) or not isinstance(branch, dict):
            return False
        kinds = self.plain.get(id(branch))
        if kinds is None:
            kinds = self.plain[id(branch)] = () if branch.keys() & _ELSEWHERE else tuple(types_of(branch))
        could_be = (new for kind in kinds for _, new in conversions(value, kind))
        return bool(kinds) and not any(isinstance(new, dict | list) or _is_a_member(branch, new) for new in could_be)

    def _inside(self, sub: dict[str, Any], place: str, found: Coerced, path: Path) -> Coerced:
        """Convert the parts of a container; a part that several schemas cover, by each in turn."""
        if not isinstance(found.value, dict | list):
            return found
        new: Any = found.value.copy()
        inner: list[Coerced] = []
        for part, _, key in self.check.children(sub, place, found.value):
            done = self._at(*part, new[key], (*path, key))
            new[key] = done.value
            inner.append(done)
        return _gathered(found, new, inner)


def _is_a_member(sub: dict[str, Any], value: Any) -> bool:
    """Return whether a value is one of those that a schema lists; of a schema that lists none, any is."""
    listed = sub["enum"] if "enum" in sub else [sub["const"]] if "const" in sub else [value]
    return any(same(value, member) for member in listed)


def _followed(first: Coerced, then: Coerced) -> Coerced:
    branches = {**first.branches, **then.branches}
    return Coerced(then.value, first.transforms + then.transforms, branches, first.refusals + then.refusals)


def _gathered(found: Coerced, new: Any, inner: list[Coerced]) -> Coerced:
    """Combine the results of a container's parts; the container itself, when nothing did."""
    notable = [done for done in inner if done.transforms or done.branches or done.refusals]
    if not notable:
        return found
    transforms = tuple(chain(found.transforms, *(done.transforms for done in notable)))
    return Coerced(
        new if any(done.transforms for done in notable) else found.value,
        transforms,
        dict(chain(found.branches.items(), *(done.branches.items() for done in notable))),
        list(islice(chain(found.refusals, *(done.refusals for done in notable)), _FEW)),
    )


def _chosen(found: Coerced, path: Path, index: int) -> Coerced:
    return replace(found, branches={**found.branches, pointer_of(path): index})


def _refused(found: Coerced, path: Path, rule: str, conversion: tuple[str, str, Coerced]) -> Coerced:
    (kind, name, _), shown = conversion, repr(_brief(found.value))
    message = f"{shown} can be converted to more than one expected value"
    if rule == NOT_ALLOWED:
        message = f"expected {kind}, found {kind_of(found.value)} {shown}"
    return replace(found, refusals=[*found.refusals, (path, rule, f"{message} ({name})")])


def _brief(value: Any) -> Any:
    """Return a bounded view of a value for events: long values are cut, containers only named."""
    if isinstance(value, str):
        return value if len(value) <= _PREVIEW else value[:_PREVIEW] + "…"
    is_large = isinstance(value, dict | list) or (isinstance(value, int) and abs(value) > 1 << 128)
    return kind_of(value) if is_large else value
