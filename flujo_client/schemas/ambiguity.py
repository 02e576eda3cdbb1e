"""Count how often pydantic would look at the parts of a value, before it does. Pure.

Pydantic tries all members of a union, and collects the errors of each. In a recursive type, that is width to the power
of depth, and the author of the value chooses the depth (ADR 26). Here each part is counted once for each part of the type.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import orjson
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from flujo_client.schemas.core import Core, core_of, schemas_in

if TYPE_CHECKING:
    from flujo_client.schemas.schema import Check

MOST: Final = 50_000
MOST_A_PART: Final = 8
"""Looks for a value that may not fit: each may leave an error behind."""
MOST_VALID: Final = 2_000_000
MOST_VALID_A_PART: Final = 64
"""Looks for a value that holds under the type's JSON Schema, where that says all that the type asks for: they leave nothing behind."""

_CONTAINERS: Final = frozenset({"list", "set", "frozenset", "generator", "tuple", "dict"})
_INSIDE: Final = ("schema", "lax_schema", "strict_schema", "json_schema", "python_schema")
_OWN_CODE: Final = frozenset({"function-before", "function-after", "function-wrap", "function-plain"})
TOO_AMBIGUOUS: Final = "too deep for a type whose unions hold themselves: there are too many ways to read it (give the unions a discriminator)"
Part = tuple[Core, Any]


def ambiguity(kind: Any, value: Any) -> str | None:
    """Return why data are not to be validated by a type: there are too many ways through its unions. None: they may be.

    `kind` is anything a `TypeAdapter` takes, or pydantic's validator of it. Models in the data are not examined, for pydantic does not either.
    """
    found = _known(kind)
    if found is None:
        return None
    core, trusted = found
    looks, parts = _Count(core).of(value)
    if looks <= MOST + MOST_A_PART * parts:
        return None
    check = _check(kind) if trusted and looks <= MOST_VALID + MOST_VALID_A_PART * parts else None
    if check is not None and check.valid(value):
        return None
    return TOO_AMBIGUOUS


def may_be_ambiguous(kind: Any) -> bool:
    """Return whether there are unions in what holds itself: data of any other type need not be looked at."""
    return _known(kind) is not None


def _known(kind: Any) -> tuple[Core, bool] | None:
    try:
        return _unions_of(kind)
    except TypeError:  # it cannot be hashed
        return None


@functools.lru_cache(maxsize=256)
def _unions_of(kind: Any) -> tuple[Core, bool] | None:
    """Return a type's core schema if there are unions in what holds itself, and whether its JSON Schema says all that it asks for."""
    core = core_of(kind)
    if core is None:
        return None
    kinds = [each["type"] for each in schemas_in(core)]
    is_recursive = "definition-ref" in kinds
    return (core, _OWN_CODE.isdisjoint(kinds)) if is_recursive and "union" in kinds else None


@functools.lru_cache(maxsize=64)
def _check(kind: Any) -> Check | None:
    try:
        from flujo_client.schemas.schema import Check

        core: Any = core_of(kind)
        return Check(GenerateJsonSchema().generate(core))
    except (ImportError, PydanticUserError, ValueError):
        return None


class _Count:
    """Counts looks from the leaves up; no recursion, for the value decides how deep it goes."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.definitions = {each["ref"]: each for each in schemas_in(core) if "ref" in each}
        self.decoded: dict[int, tuple[Any, Any]] = {}

    def of(self, value: Any) -> tuple[int, int]:
        """Return the looks at a value, and how many parts it has."""
        looks: dict[tuple[int, int], int] = {}
        opened: set[tuple[int, int]] = set()
        pending: list[Part] = [(self.core, value)]
        while pending:
            core, part = pending[-1]
            key = (id(core), id(part))
            below = [] if key in looks else list(self._below(core, part))
            if key not in opened:
                opened.add(key)
                pending += [each for each in below if (id(each[0]), id(each[1])) not in opened]
                continue
            counts = [looks.get((id(inner), id(child)), 0) for inner, child in below]
            if key not in looks:
                looks[key] = 1 + (max(counts, default=0) if core["type"] == "tagged-union" else sum(counts))
            pending.pop()
        return looks[id(self.core), id(value)], len({part for _, part in looks})

    def _below(self, core: Core, value: Any) -> Iterator[Part]:
        match core["type"]:
            case "definition-ref":
                yield self.definitions[core["schema_ref"]], value
            case "union":
                yield from ((each[0] if isinstance(each, tuple) else each, value) for each in core["choices"])
            case "tagged-union":
                yield from ((each, value) for each in core["choices"].values() if isinstance(each, dict))
            case "model-fields" | "typed-dict" | "dataclass-args":
                yield from _fields(core, value)
            case "chain":
                yield from ((each, value) for each in core["steps"])
            case "json" if isinstance(value, str | bytes):
                yield from self._inside(core, value)
            case "model" | "dataclass" if isinstance(value, core["cls"]):
                return
            case kind if kind in _CONTAINERS:
                yield from _elements(core, value)
            case _:
                yield from ((core[name], value) for name in _INSIDE if isinstance(core.get(name), dict))

    def _inside(self, core: Core, text: str | bytes) -> Iterator[Part]:
        """Look into a text that is JSON, as pydantic-ai accepts for an output that is not an object."""
        if id(text) not in self.decoded:
            self.decoded[id(text)] = text, None
            with suppress(orjson.JSONDecodeError):
                self.decoded[id(text)] = text, orjson.loads(text)
        if isinstance(core.get("schema"), dict):
            yield core["schema"], self.decoded[id(text)][1]


def _elements(core: Core, value: Any) -> Iterator[Part]:
    items = core.get("items_schema")
    if core["type"] == "dict":
        if isinstance(value, dict) and "values_schema" in core:
            yield from ((core["values_schema"], each) for each in value.values())
    elif items and isinstance(value, list | tuple | set | frozenset):
        by_place = items if isinstance(items, list) else [items]
        yield from ((by_place[min(place, len(by_place) - 1)], each) for place, each in enumerate(value))


def _fields(core: Core, value: Any) -> Iterator[Part]:
    if not isinstance(value, dict):
        return
    fields = core["fields"]
    named = fields.items() if isinstance(fields, dict) else [(each["name"], each) for each in fields]
    for name, each in named:
        for key in {name, *_aliases(each.get("validation_alias"))}:
            if key in value:
                yield each["schema"], value[key]


def _aliases(alias: Any) -> Iterator[str]:
    """Return the keys that a field may be found under: of a path, the first."""
    if isinstance(alias, str):
        yield alias
    elif isinstance(alias, list):
        for each in alias if alias and isinstance(alias[0], list) else [alias]:
            yield from _aliases(each[0])
