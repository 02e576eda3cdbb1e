"""Shapes of values that stand for something else: references, expressions and templates, schemas, models, AROS blocks.

What is wrong with one is found by whoever reads it elsewhere, and told with its place here. Must not build anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pydantic

from flujo_client.blueprint.finding import nearest, shown
from flujo_client.blueprint.shapes import wrong
from flujo_client.contract.json_schema import wrong_schema
from flujo_client.contract.processing import PRECHECK_AGENTS, PROCESSING_KEYS, ProcessingConfigModel
from flujo_client.errors import BlueprintTextError, FlujoError
from flujo_client.pipeline.compiled_text import expression_of, template_of
from flujo_client.pipeline.reference import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    from flujo_client.blueprint.shapes import FieldType, Spot, Word
    from flujo_client.contract.validation import Finding


@dataclass(frozen=True, slots=True)
class Reference:
    """`package.module:attribute`, under an allowed prefix; `check` says what is wrong with what it names."""

    what: str
    check: Callable[[Any], str | None] | None = None

    @property
    def description(self) -> str:
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
    def description(self) -> str:
        return f"{self.words.description}; or {self.other.description}"

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
    def description(self) -> str:
        return f"{', '.join(f'{each}.<name>' for each in self.tables)} of this document; or {self.other.description}"

    def fits(self, value: Any) -> bool:
        return self.other.fits(value)

    def findings(self, value: str, spot: Spot) -> Iterator[Finding]:
        table, dot, name = value.partition(".")
        if ":" in value or not dot or table not in ("agents", "imports"):
            yield from self.other.findings(value, spot)
        elif table not in self.tables:
            yield spot.finding(
                "Y-REFERENCE", f"'{shown(value)}' cannot stand here", allowed=f"it takes {self.description}"
            )
        elif name not in (known := spot.named(table)):
            near = nearest(name, known)
            text = f"`{table}` of this document has no '{shown(name)}'"
            yield spot.finding("Y-REFERENCE", text, nearest=f"{table}.{near}" if near else None)


@dataclass(frozen=True, slots=True)
class Formula:
    """A text that `read` has to be able to read; what is wrong in it is told with its place in the document."""

    description: str
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

    description: str = "any value; texts in it are templates"

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

    description: str = "a JSON Schema, as a mapping"

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
    def description(self) -> str:
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
            yield from (self._finding_of(each, value, spot) for each in error.errors())

    def read(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Give the fields by their first names."""
        return {self.aliases.get(name, name): each for name, each in value.items()}

    def _finding_of(self, error: Any, value: Mapping[str, Any], spot: Spot) -> Finding:
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

    agent: FieldType
    description: str = f"a mapping of {', '.join(PROCESSING_KEYS)} (AROS)"

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


EXPRESSION = Formula("an expression, such as previous_step.score > 0.8", expression_of)
TEMPLATE = Formula("a template, such as Answer {{ previous_step }}", template_of)
