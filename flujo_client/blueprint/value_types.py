"""Shapes of values with a language of their own, whose parser finds the faults: references, texts, schemas, models, AROS blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import pydantic
from pydantic import BaseModel

from flujo_client.blueprint.finding import nearest, shown
from flujo_client.blueprint.shapes import DocumentLocation, FieldType, OfMapping, OfText, OneOf, wrong
from flujo_client.contract.json_schema import wrong_schema
from flujo_client.contract.processing import PRECHECK_AGENTS, PROCESSING_KEYS, ProcessingConfigModel
from flujo_client.contract.validation import Finding
from flujo_client.errors import BlueprintTextError, FlujoError
from flujo_client.pipeline.compiled_text import expression_of, template_of
from flujo_client.pipeline.limits import limit_template, run_key
from flujo_client.pipeline.reference import load

_TYPOGRAPHIC: Final = "“”„«»‘’‚"  # noqa: RUF001 - as word processors write them
_PLAIN_QUOTES: Final = "YAML takes it for part of the text; write plain quotes, or none"


@dataclass(frozen=True, slots=True)
class Reference(OfText):
    """`package.module:attribute`, under an allowed prefix; `check` returns what is wrong with what it names."""

    what: str
    check: Callable[[Any], str | None] | None = None
    rule: str = "Y-REFERENCE"

    @property
    def description(self) -> str:
        return f"a reference to {'an' if self.what[0] in 'aeio' else 'a'} {self.what}, as package.module:attribute"

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        if value[0] in _TYPOGRAPHIC:
            message = f"'{shown(value)}' begins with a typographic quote"
            yield location.finding(self.rule, message, allowed=_PLAIN_QUOTES)
            return
        try:
            found = load(value, allowed=location.allowed, what=self.what)
        except FlujoError as error:
            yield location.finding(self.rule, error.message, allowed=error.suggestion)
            return
        if self.check is not None and (problem := self.check(found)):
            yield location.finding(self.rule, f"'{shown(value)}' {problem}")


def is_function(found: Any) -> str | None:
    """Return what is wrong with a function's reference."""
    return None if callable(found) else f"is a {type(found).__name__}, not a callable"


@dataclass(frozen=True, slots=True)
class OneOfOr:
    """One of a few words, or a reference."""

    words: OneOf
    other: Reference

    @property
    def description(self) -> str:
        return f"{self.words.description}; or {self.other.description}"

    def fits(self, value: Any) -> bool:
        return isinstance(value, str)

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        yield from (self.other if ":" in value else self.words).findings(value, location)


@dataclass(frozen=True, slots=True)
class Named(OfText):
    """`agents.<name>` or `imports.<name>` of this document, or what `other` takes."""

    tables: tuple[str, ...]
    other: Reference

    @property
    def description(self) -> str:
        return f"{', '.join(f'{each}.<name>' for each in self.tables)} of this document; or {self.other.description}"

    def findings(self, value: str, location: DocumentLocation) -> Iterator[Finding]:
        table, dot, name = value.partition(".")
        if ":" in value or not dot or table not in ("agents", "imports"):
            yield from self.other.findings(value, location)
        elif table not in self.tables:
            message = f"'{shown(value)}' is not accepted here"
            yield location.finding(self.other.rule, message, allowed=f"it takes {self.description}")
        elif name not in (known := location.named(table)):
            near = nearest(name, known)
            rule = "V-I1" if table == "imports" else self.other.rule
            text = f"`{table}` of this document has no '{shown(name)}'"
            yield location.finding(rule, text, nearest=f"{table}.{near}" if near else None)


@dataclass(frozen=True, slots=True)
class Formula(OfText):
    """A text that `read` has to be able to read; what is wrong in it is reported with its place in the document."""

    description: str
    read: Callable[[str], Any]
    rule: str = "V-T1"

    def findings(self, value: str, location: DocumentLocation) -> Iterator[Finding]:
        try:
            self.read(value)
        except BlueprintTextError as error:
            yield location.finding(self.rule, error.message, allowed=error.suggestion)


class Templates:
    description = "any value; texts in it are templates"

    def fits(self, value: Any) -> bool:  # noqa: ARG002
        return True

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        if isinstance(value, str):
            yield from TEMPLATE.findings(value, location)
        elif isinstance(value, Mapping | list):
            for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
                yield from self.findings(each, location.at(key))


class JsonSchema(OfMapping):
    description = "a JSON Schema, as a mapping"

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        if problem := wrong_schema(value):
            yield location.finding("V-S1", f"it {problem}")


@dataclass(frozen=True, slots=True)
class Model(OfMapping):
    """A mapping that a pydantic model reads."""

    model: type[BaseModel]
    called: str
    aliases: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def description(self) -> str:
        return f"a mapping of {', '.join(self.model.model_fields)}"

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        for other, name in self.aliases.items():
            if other in value and name in value:
                yield location.at(other).finding("Y-VALUE", f"is an alias of '{name}', which is used here too")
        try:
            self.model.model_validate(self.read(value), strict=False)
        except pydantic.ValidationError as error:
            yield from (self._finding_of(each, value, location) for each in error.errors())

    def read(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields by their first names."""
        return {self.aliases.get(name, name): each for name, each in value.items()}

    def _finding_of(self, error: Any, value: Mapping[str, Any], location: DocumentLocation) -> Finding:
        first, *rest = error["loc"] or ("",)
        written = next((other for other, name in self.aliases.items() if name == first and other in value), first)
        here = location.at(written, *rest)
        if error["type"] == "extra_forbidden":
            known = tuple(self.model.model_fields)
            near = nearest(first, known) if not rest else None
            allowed = None if near or rest else f"known: {', '.join(known)}"
            return here.finding("Y-KEY", f"{self.called} has no such key", nearest=near, allowed=allowed)
        return here.finding("Y-VALUE", f"'{shown(error['input'])}' is not accepted here", allowed=error["msg"])


@dataclass(frozen=True, slots=True)
class Processing(OfMapping):
    """A `processing` block: AROS's own reader judges each of its keys, `agent` those that name one."""

    agent: FieldType
    description: str = f"a mapping of {', '.join(PROCESSING_KEYS)} (AROS)"

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        for key, each in value.items():
            yield from self._judged({key: each}, location)
        precheck = value.get("reasoning_precheck")
        for key in PRECHECK_AGENTS:
            if isinstance(precheck, Mapping) and precheck.get(key) is not None:
                yield from wrong(self.agent, precheck[key], location.at("reasoning_precheck", key))

    def _judged(self, part: Mapping[str, Any], location: DocumentLocation) -> Iterator[Finding]:
        try:
            ProcessingConfigModel.read(part)
        except FlujoError as error:
            key, _, text = error.message.partition(": ")
            where = _deepest(location, key.removeprefix("processing").strip(".") or str(next(iter(part))))
            yield where.finding("Y-PROCESSING", text or error.message, allowed=error.suggestion)


def _deepest(location: DocumentLocation, dotted: str) -> DocumentLocation:
    for part in filter(None, dotted.split(".")):
        if location.at(part).path not in location.source.marks:
            break
        location = location.at(part)
    return location


EXPRESSION = Formula("an expression, such as previous_step.score > 0.8", expression_of, "V-EX1")
LIMIT_NAME = Formula("a name, such as crm, or a template, such as crm:{{ tenant }}", limit_template)
RUN_LIMIT_KEY = Formula("a name, such as crm, or a template, such as crm:{{ input.account }}", run_key)
TEMPLATE = Formula("a template, such as Answer {{ previous_step }}", template_of)
