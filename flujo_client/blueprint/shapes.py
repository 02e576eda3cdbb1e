"""The shapes of a blueprint's values: each finds the faults of a value, and describes itself to people.

A shape must not build anything or know a kind of step. `keys.py` defines the shape of each key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Protocol

from flujo_client.blueprint.finding import Path, nearest, shown
from flujo_client.blueprint.read import Source
from flujo_client.contract.validation import Finding

INSIDE: Final = "inside"
"""The default for how the steps under a key run."""
IN_QUOTES: Final = " unless it is in quotes"
"""The suffix of a message for a number that would be valid as a text."""


@dataclass(frozen=True, slots=True)
class DocumentLocation:
    """A place in a document, with the facts that its checks need."""

    source: Source
    path: Path
    allowed: Sequence[str]
    """The allowed import prefixes of references."""
    document: Any
    """The innermost document around it, whose agents and imports it may name."""

    def at(self, *parts: str | int) -> DocumentLocation:
        return replace(self, path=(*self.path, *parts))

    def finding(self, rule: str, message: str, **more: Any) -> Finding:
        return self.source.finding(rule, self.path, message, **more)

    def named(self, table: str) -> Mapping[str, Any]:
        """Return what the document declares in `agents` or `imports`."""
        found = self.document.get(table) if isinstance(self.document, Mapping) else None
        return found if isinstance(found, Mapping) else {}


class FieldType(Protocol):
    """The values that a key or an item may have. `description` names them to people, after "it takes"."""

    @property
    def description(self) -> str: ...

    def fits(self, value: Any) -> bool:
        """Return whether the value is meant for this shape, right or wrong inside."""

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        """Find all that is wrong with a value that fits."""


def wrong(shape: FieldType, value: Any, location: DocumentLocation) -> Iterator[Finding]:
    """Find all that is wrong with a value."""
    if shape.fits(value):
        yield from shape.findings(value, location)
    else:
        message = f"{_kind(value)} is not accepted here"
        if isinstance(value, int | float) and shape.fits(shown(value)):
            message += IN_QUOTES
        yield location.finding("Y-TYPE", message, allowed=f"it takes {shape.description}")


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f"'{shown(value)}'"


class Sound:
    """A shape that finds nothing wrong inside."""

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:  # noqa: ARG002 - others look at them
        yield from ()


class OfMapping:
    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping)


class OfText:
    """A shape of texts that are not empty."""

    def fits(self, value: Any) -> bool:
        return isinstance(value, str) and bool(value.strip())


@dataclass(frozen=True, slots=True)
class Plain(Sound):
    description: str
    fits: Callable[[Any], bool]
    schema: Mapping[str, Any]
    """The JSON Schema of these values, for editors."""


TEXT: Final = Plain("a text", OfText().fits, {"$ref": "#/$defs/text"})
FLAG: Final = Plain("true or false", lambda value: isinstance(value, bool), {"type": "boolean"})
ANY: Final = Plain("any value", lambda _: True, {})
NULL: Final = Plain("null", lambda value: value is None, {"type": "null"})
"""Null, where that means something."""


@dataclass(frozen=True, slots=True)
class Number(Sound):
    """A number: at least `least`, or more than `above`; `whole`, if it counts something."""

    least: float | None = None
    above: float | None = None
    whole: bool = False

    @property
    def description(self) -> str:
        above = "" if self.above is None else f" above {self.above:g}"
        bound = above if self.least is None else f" from {self.least:g}"
        return f"a {'whole ' if self.whole else ''}number{bound}"

    def fits(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        return (self.least is None or value >= self.least) and (self.above is None or value > self.above)


COUNT: Final = Number(least=1, whole=True)


@dataclass(frozen=True, slots=True)
class OneOf:
    words: tuple[str, ...]

    @property
    def description(self) -> str:
        return " | ".join(self.words)

    def fits(self, value: Any) -> bool:
        return isinstance(value, str)

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        if value not in self.words:
            hints = {"allowed": f"it takes {self.description}", "nearest": nearest(value, self.words)}
            yield location.finding("Y-VALUE", f"'{shown(value)}' is not known", **hints)


@dataclass(frozen=True, slots=True)
class ListOf:
    each: FieldType

    @property
    def description(self) -> str:
        return f"a list; each is {self.each.description}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, list)

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        for index, each in enumerate(value):
            yield from wrong(self.each, each, location.at(index))


@dataclass(frozen=True, slots=True)
class MapOf(OfMapping):
    """A mapping of names of the author's own."""

    each: FieldType
    key: str = "name"

    @property
    def description(self) -> str:
        return f"a mapping; each {self.key}'s value is {self.each.description}"

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        for name, each in value.items():
            yield from wrong(self.each, each, location.at(name))


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of several shapes: the first that the value fits."""

    shapes: tuple[FieldType, ...]

    @property
    def description(self) -> str:
        return "; or ".join(each.description for each in self.shapes)

    def fits(self, value: Any) -> bool:
        return any(each.fits(value) for each in self.shapes)

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        yield from next(each for each in self.shapes if each.fits(value)).findings(value, location)


@dataclass(frozen=True, slots=True)
class Key:
    shape: FieldType
    what: str
    """Its description, for documents."""
    field: str = ""
    """The step's field that has the value, if its name is another one."""
    required: bool = False
    """Whether the table must have it."""
    runs: str = INSIDE
    """How the steps under it run relative to each other: `side` by side, one by `choice`, `again` and again, as a `state`, `instead` of
    what failed, or, where there is only one, `inside`."""
    after: bool = False
    """Whether its templates and expressions are read when the steps inside have run."""


@dataclass(frozen=True, slots=True)
class Table(OfMapping):
    keys: Mapping[str, Key]
    called: str
    """The name of the mapping in errors, such as "a loop"."""
    others: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Keys that belong elsewhere, each with the place where it belongs."""
    one_of: tuple[tuple[str, ...], ...] = ()
    """Groups of keys of which exactly one is required."""
    at_most_one_of: tuple[tuple[str, ...], ...] = ()
    """Groups of keys of which at most one is allowed."""

    @property
    def description(self) -> str:
        return f"a mapping of {', '.join(self.keys)}"

    def findings(self, value: Mapping[str, Any], location: DocumentLocation) -> Iterator[Finding]:
        for name, given in value.items():
            key = self.keys.get(name)
            if key is None:
                yield self._unknown(name, location.at(name))
            else:
                yield from wrong(key.shape, given, location.at(name))
        for name, key in self.keys.items():
            if key.required and name not in value:
                allowed = f"it takes {key.shape.description}"
                yield location.finding("Y-MISSING", f"{self.called} needs '{name}'", allowed=allowed)
        for names in self.one_of:
            if not value.keys() & set(names):
                rule = "V-A1" if "agent" in names else "Y-MISSING"
                yield location.finding(rule, f"{self.called} needs one of {', '.join(names)}")
        for names in (*self.one_of, *self.at_most_one_of):
            given = [name for name in names if name in value]
            for name in given[1:]:
                yield location.at(name).finding("Y-VALUE", f"cannot be combined with '{given[0]}'; keep one of them")

    def _unknown(self, name: Any, location: DocumentLocation) -> Finding:
        if name in self.others:
            return location.finding("Y-KEY", f"{self.called} has no such key; it belongs on {self.others[name]}")
        near = nearest(name, self.keys)
        allowed = None if near else f"known: {', '.join(self.keys)}"
        return location.finding("Y-KEY", f"{self.called} has no such key", allowed=allowed, nearest=near)
