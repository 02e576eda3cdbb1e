"""What a blueprint's values may be, as data that can be asked: what is wrong with this, and how is it told to people.

A shape must not build anything or know a kind of step. In: a value at its place; out: findings. `keys.py` says which key has which shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import pydantic

from flujo_client.blueprint.finding import Finding, nearest, shown
from flujo_client.contract.json_schema import wrong_schema
from flujo_client.contract.processing import PRECHECK_AGENTS, PROCESSING_KEYS, ProcessingConfigModel
from flujo_client.errors import BlueprintTextError, FlujoError
from flujo_client.pipeline.formula import expression_of, template_of
from flujo_client.pipeline.reference import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    from flujo_client.blueprint.finding import Path
    from flujo_client.blueprint.read import Source


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a document, and what is known there.

    Attributes:
        source: the document.
        path: the place.
        allowed: import prefixes that references may stand under.
        document: the innermost document around it, whose agents and imports it may name.
    """

    source: Source
    path: Path
    allowed: Sequence[str]
    document: Any

    def at(self, *parts: str | int) -> Spot:
        """A place below this one."""
        return replace(self, path=(*self.path, *parts))

    def finding(self, rule: str, message: str, **more: Any) -> Finding:
        """Make a finding about this place."""
        return self.source.finding(rule, self.path, message, **more)

    def named(self, table: str) -> Mapping[str, Any]:
        """What the document declares in `agents` or `imports`."""
        found = self.document.get(table) if isinstance(self.document, Mapping) else None
        return found if isinstance(found, Mapping) else {}


class Shape(Protocol):
    """What may stand somewhere. `said` tells it to people, after "it takes"."""

    @property
    def said(self) -> str:
        """What it takes, in words."""

    def fits(self, value: Any) -> bool:
        """Tell whether the value is meant for this shape, right or wrong inside."""

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:
        """Find all that is wrong with a value that fits."""


def wrong(shape: Shape, value: Any, spot: Spot) -> Iterator[Finding]:
    """Find all that is wrong with a value."""
    if shape.fits(value):
        yield from shape.findings(value, spot)
    else:
        told = f"{_kind(value)} cannot stand here"
        if isinstance(value, int | float) and shape.fits(shown(value)):
            told += " unless it is in quotes"
        yield spot.finding("Y-TYPE", told, allowed=f"it takes {shape.said}")


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f"'{shown(value)}'"


class _Sound:
    """A shape that finds nothing wrong inside."""

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:  # noqa: ARG002 - others look at them
        yield from ()


@dataclass(frozen=True, slots=True)
class Anything(_Sound):
    """Any value."""

    said: str = "any value"

    def fits(self, value: Any) -> bool:  # noqa: ARG002
        return True


@dataclass(frozen=True, slots=True)
class Text(_Sound):
    """A text that is not empty."""

    said: str = "a text"

    def fits(self, value: Any) -> bool:
        return isinstance(value, str) and bool(value.strip())


@dataclass(frozen=True, slots=True)
class Flag(_Sound):
    """True or false."""

    said: str = "true or false"

    def fits(self, value: Any) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Number(_Sound):
    """A number: at least `least`, or more than `above`; `whole`, if it counts something."""

    least: float | None = None
    above: float | None = None
    whole: bool = False

    @property
    def said(self) -> str:
        bound = (
            f" from {self.least:g}"
            if self.least is not None
            else f" above {self.above:g}"
            if self.above is not None
            else ""
        )
        return f"a {'whole ' if self.whole else ''}number{bound}"

    def fits(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        return (self.least is None or value >= self.least) and (self.above is None or value > self.above)


@dataclass(frozen=True, slots=True)
class Word:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def said(self) -> str:
        return " | ".join(self.words)

    def fits(self, value: Any) -> bool:
        return isinstance(value, str)

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:
        if value not in self.words:
            near = nearest(value, self.words)
            yield spot.finding(
                "Y-VALUE", f"'{shown(value)}' is not known", allowed=f"it takes {self.said}", nearest=near
            )


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list."""

    each: Shape

    @property
    def said(self) -> str:
        return f"a list; each is {self.each.said}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, list)

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:
        for index, each in enumerate(value):
            yield from wrong(self.each, each, spot.at(index))


@dataclass(frozen=True, slots=True)
class MapOf:
    """A mapping of names of the author's own."""

    each: Shape
    key: str = "name"

    @property
    def said(self) -> str:
        return f"a mapping; each {self.key}'s value is {self.each.said}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:
        for name, each in value.items():
            yield from wrong(self.each, each, spot.at(name))


@dataclass(frozen=True, slots=True)
class Either:
    """One of several shapes: the first that the value fits."""

    shapes: tuple[Shape, ...]

    @property
    def said(self) -> str:
        return "; or ".join(each.said for each in self.shapes)

    def fits(self, value: Any) -> bool:
        return any(each.fits(value) for each in self.shapes)

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:
        yield from next(each for each in self.shapes if each.fits(value)).findings(value, spot)


@dataclass(frozen=True, slots=True)
class Nothing(_Sound):
    """Null, where that means something."""

    said: str = "null"

    def fits(self, value: Any) -> bool:
        return value is None


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table.

    Attributes:
        shape: what it takes.
        what: what it does, for documents.
        required: whether the table has to have it.
        instead: what to write instead of a key that this engine refuses; such a key has no shape that counts.
    """

    shape: Shape
    what: str
    required: bool = False
    instead: str | None = None


def refused(what: str, instead: str) -> Key:
    """A key that users of the original know, which means nothing here."""
    return Key(Anything(), what, instead=instead)


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping with known keys.

    Attributes:
        keys: all of them.
        called: what it is, such as "a loop".
        others: keys that stand on something else, by what that is.
        one_of: groups of keys of which one is needed, and not two.
        at_most_one_of: groups of which there may be none too.
    """

    keys: Mapping[str, Key]
    called: str
    others: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    one_of: tuple[tuple[str, ...], ...] = ()
    at_most_one_of: tuple[tuple[str, ...], ...] = ()

    @property
    def said(self) -> str:
        return f"a mapping of {', '.join(name for name, key in self.keys.items() if key.instead is None)}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def findings(self, value: Mapping[str, Any], spot: Spot) -> Iterator[Finding]:
        for name, given in value.items():
            key = self.keys.get(name)
            if key is None:
                yield self._unknown(name, spot.at(name))
            elif key.instead is not None:
                yield spot.at(name).finding("Y-UNSUPPORTED", f"this engine does not have it: {key.instead}")
            else:
                yield from wrong(key.shape, given, spot.at(name))
        for name, key in self.keys.items():
            if key.required and name not in value:
                yield spot.finding("Y-MISSING", f"{self.called} needs '{name}'", allowed=f"it takes {key.shape.said}")
        for names in self.one_of:
            if not value.keys() & set(names):
                yield spot.finding("Y-MISSING", f"{self.called} needs one of {', '.join(names)}")
        for names in (*self.one_of, *self.at_most_one_of):
            given = [name for name in names if name in value]
            for name in given[1:]:
                yield spot.at(name).finding("Y-VALUE", f"stands beside '{given[0]}'; keep one of them")

    def _unknown(self, name: Any, spot: Spot) -> Finding:
        if name in self.others:
            return spot.finding("Y-KEY", f"{self.called} has no such key; it stands on {self.others[name]}")
        known = [each for each, key in self.keys.items() if key.instead is None]
        near = nearest(name, known)
        allowed = None if near else f"known: {', '.join(known)}"
        return spot.finding("Y-KEY", f"{self.called} has no such key", allowed=allowed, nearest=near)


@dataclass(frozen=True, slots=True)
class Reference:
    """`package.module:attribute`, under an allowed prefix; `check` says what is wrong with what it names."""

    what: str
    check: Callable[[Any], str | None] | None = None

    @property
    def said(self) -> str:
        return f"a reference to {'an' if self.what[0] in 'aeio' else 'a'} {self.what}, as package.module:attribute"

    def fits(self, value: Any) -> bool:
        return isinstance(value, str) and bool(value.strip())

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:
        try:
            found = load(value, allowed=spot.allowed, what=self.what)
        except FlujoError as error:
            yield spot.finding("Y-REFERENCE", error.message, allowed=error.suggestion)
            return
        if self.check is not None and (problem := self.check(found)):
            yield spot.finding("Y-REFERENCE", f"'{shown(value)}' {problem}")


def is_function(found: Any) -> str | None:
    """Say what is wrong with a function's reference."""
    return None if callable(found) else f"is a {type(found).__name__}, no callable"


@dataclass(frozen=True, slots=True)
class WordOr:
    """One of a few words, or a reference."""

    words: Word
    other: Reference

    @property
    def said(self) -> str:
        return f"{self.words.said}; or {self.other.said}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, str)

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:
        yield from (self.other if ":" in value else self.words).findings(value, spot)


@dataclass(frozen=True, slots=True)
class Named:
    """`agents.<name>` or `imports.<name>` of this document, or what `other` takes."""

    tables: tuple[str, ...]
    other: Reference

    @property
    def said(self) -> str:
        return f"{', '.join(f'{each}.<name>' for each in self.tables)} of this document; or {self.other.said}"

    def fits(self, value: Any) -> bool:
        return self.other.fits(value)

    def findings(self, value: str, spot: Spot) -> Iterator[Finding]:
        table, dot, name = value.partition(".")
        if ":" in value or not dot or table not in ("agents", "imports"):
            yield from self.other.findings(value, spot)
        elif table not in self.tables:
            yield spot.finding("Y-REFERENCE", f"'{shown(value)}' cannot stand here", allowed=f"it takes {self.said}")
        elif name not in (known := spot.named(table)):
            near = nearest(name, known)
            text = f"`{table}` of this document has no '{shown(name)}'"
            yield spot.finding("Y-REFERENCE", text, nearest=f"{table}.{near}" if near else None)


@dataclass(frozen=True, slots=True)
class Formula:
    """A text that `read` has to be able to read; what is wrong in it is told with its place in the document."""

    said: str
    read: Callable[[str], Any]

    def fits(self, value: Any) -> bool:
        return isinstance(value, str) and bool(value.strip())

    def findings(self, value: str, spot: Spot) -> Iterator[Finding]:
        try:
            self.read(value)
        except BlueprintTextError as error:
            yield spot.finding("Y-FORMULA", error.message, allowed=error.suggestion)


@dataclass(frozen=True, slots=True)
class Templates:
    """A value in which every text is a template."""

    said: str = "any value; texts in it are templates"

    def fits(self, value: Any) -> bool:  # noqa: ARG002
        return True

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:
        if isinstance(value, str):
            yield from TEMPLATE.findings(value, spot)
        elif isinstance(value, Mapping | list):
            for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
                yield from self.findings(each, spot.at(key))


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON Schema, as a mapping."""

    said: str = "a JSON Schema, as a mapping"

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:
        if problem := wrong_schema(value):
            yield spot.finding("Y-VALUE", f"it {problem}")


@dataclass(frozen=True, slots=True)
class Model:
    """A mapping that a pydantic model reads."""

    model: type[BaseModel]
    called: str
    aliases: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def said(self) -> str:
        return f"a mapping of {', '.join(self.model.model_fields)}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:
        for other, name in self.aliases.items():
            if other in value and name in value:
                yield spot.at(other).finding("Y-VALUE", f"means the same as '{name}', which stands here too")
        try:
            self.model.model_validate(self.read(value), strict=False)
        except pydantic.ValidationError as error:
            yield from (self._told(each, value, spot) for each in error.errors())

    def read(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Give the fields by their first names."""
        return {self.aliases.get(name, name): each for name, each in value.items()}

    def _told(self, error: Any, value: Mapping[str, Any], spot: Spot) -> Finding:
        first, *rest = error["loc"] or ("",)
        written = next((other for other, name in self.aliases.items() if name == first and other in value), first)
        here = spot.at(written, *rest)
        if error["type"] == "extra_forbidden":
            known = tuple(self.model.model_fields)
            near = nearest(first, known) if not rest else None
            allowed = None if near or rest else f"known: {', '.join(known)}"
            return here.finding("Y-KEY", f"{self.called} has no such key", nearest=near, allowed=allowed)
        return here.finding("Y-VALUE", f"'{shown(error['input'])}' cannot stand here", allowed=error["msg"])


@dataclass(frozen=True, slots=True)
class Processing:
    """A `processing` block: AROS's own reader judges each of its keys (M-148), `agent` those that name one."""

    agent: Shape
    said: str = f"a mapping of {', '.join(PROCESSING_KEYS)} (AROS)"

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:
        for key, each in value.items():
            yield from self._judged({key: each}, spot)
        precheck = value.get("reasoning_precheck")
        for key in PRECHECK_AGENTS:
            if isinstance(precheck, Mapping) and precheck.get(key) is not None:
                yield from wrong(self.agent, precheck[key], spot.at("reasoning_precheck", key))

    def _judged(self, part: Mapping[str, Any], spot: Spot) -> Iterator[Finding]:
        try:
            ProcessingConfigModel.read(part)
        except FlujoError as error:
            key, _, text = error.message.partition(": ")
            where = _deepest(spot, key.removeprefix("processing").strip(".") or str(next(iter(part))))
            yield where.finding("Y-PROCESSING", text or error.message, allowed=error.suggestion)


def _deepest(spot: Spot, dotted: str) -> Spot:
    for part in filter(None, dotted.split(".")):
        if spot.at(part).path not in spot.source.marks:
            break
        spot = spot.at(part)
    return spot


TEXT, FLAG, ANY = Text(), Flag(), Anything()
EXPRESSION = Formula("an expression, such as previous_step.score > 0.8", expression_of)
TEMPLATE = Formula("a template, such as Answer {{ previous_step }}", template_of)
