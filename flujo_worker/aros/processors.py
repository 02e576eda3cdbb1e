"""The parser's stages under their documented names, for chains of output processors that users build.

Each runs one stage of the parser and passes on what it cannot decide. A step runs `parse`, which does everything at once and checks that there is
only one reading. Other values pass through unchanged; nothing is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from flujo_client.contract.processing import ProcessingSettings
from flujo_client.schemas.parts import Schema
from flujo_client.schemas.schema import Check, UnusableSchema
from flujo_worker.aros.attempt import Effort, ParseAttempt
from flujo_worker.aros.candidates import Layer
from flujo_worker.aros.coerce import Coercer
from flujo_worker.aros.decode import decoded
from flujo_worker.aros.outcome import StageRefused
from flujo_worker.aros.scalars import ParseBudget
from flujo_worker.aros.wanted import Wanted

_ANY: Final[Schema] = True


class _Processor:
    """One stage: `process` is what a chain calls; `stage` is the word in its events."""

    name: ClassVar[str]
    stage: ClassVar[str]
    takes: ClassVar[type] = str

    async def process(self, data: Any, context: Any = None) -> Any:  # noqa: ARG002 - the signature of every output processor
        """Return the stage's result for a text, and anything else as it came; the last stage takes any value."""
        if not isinstance(data, self.takes):
            return data
        try:
            return self._processed(data)
        except (StageRefused, UnusableSchema, RecursionError):
            return data

    def _processed(self, data: Any, /) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class JsonRegionExtractorProcessor(_Processor):
    """Stage 0: the text of the best region, with its layers of encoding undone."""

    name: ClassVar[str] = "JsonRegionExtractor"
    stage: ClassVar[str] = "extract"
    schema: Schema = _ANY
    """Its root says which kind of region goes first."""
    max_unescape_depth: int = 2

    def _processed(self, text: str, /) -> str:
        wanted, budget = Wanted(Check(self.schema).kinds()), ParseBudget()
        layer = Layer.of(text, 0, wanted)
        while layer.depth < self.max_unescape_depth and wanted.kinds != {"string"} and (below := layer.below(budget)):
            layer = Layer.of(below[0], layer.depth + 1, wanted)
        found = layer.found(0, budget)
        if found.cut is not None or not found.candidates:
            return text
        best = found.candidates[0]
        return text if best.kind == "scalar" and not layer.whole else layer.text[best.start : best.stop]


@dataclass(frozen=True)
class TolerantJsonDecoderProcessor(_Processor):
    """Stage 1: the value, decoded strictly or at the tolerant levels that are on; the text when neither can."""

    name: ClassVar[str] = "TolerantJsonDecoder"
    stage: ClassVar[str] = "tolerant"
    tolerant_level: int = 0

    def _processed(self, text: str, /) -> Any:
        value = decoded(text)
        return value[0] if value else _first_read(text, range(1, self.tolerant_level + 1))


@dataclass(frozen=True)
class DeterministicRepairProcessor(_Processor):
    """Stage 2: the value, read despite the slips that are allowed at every level; the text if that is impossible.

    Missing last braces stay missing here: only the schema, which `parse` checks, can show that all members are present.
    """

    name: ClassVar[str] = "DeterministicRepair"
    stage: ClassVar[str] = "syntactic"

    def _processed(self, text: str, /) -> Any:
        return _first_read(text, (0,))


@dataclass(frozen=True)
class SmartTypeCoercionProcessor(_Processor):
    """Stage 3: a new value in which the allowed conversions are made; the old one where they do not lead to a valid whole."""

    name: ClassVar[str] = "SmartTypeCoercion"
    stage: ClassVar[str] = "semantic"
    takes: ClassVar[type] = object
    schema: Schema = _ANY
    settings: ProcessingSettings = field(default_factory=ProcessingSettings)

    def _processed(self, data: Any, /) -> Any:
        check = Check(self.schema)
        if check.valid(data):
            return data
        new = Coercer(check, self.settings, ParseBudget()).run(data).value
        return new if check.valid(new) else data


def _first_read(text: str, levels: Sequence[int]) -> Any:
    check, budget = Check(_ANY), ParseBudget()
    layer = Layer.of(text, 0, Wanted(check.kinds()))
    for level in levels:
        found = layer.found(level, budget)
        if found.cut is None and len(found.candidates) == 1:
            attempt, effort = ParseAttempt(check, layer.text, budget), Effort(level, ProcessingSettings())
            try:
                return attempt.run(found.candidates[0], effort).value
            except StageRefused:
                continue
    return text
