"""One candidate at one effort: from text to a value that the schema holds for, or why not.

Effort grows from strict decoding over the slips of Stage 2 to the tolerant tiers; each is the one before with more allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from flujo_client.contract.processing import ProcessingSettings
from flujo_client.frozen import frozen
from flujo_client.schemas.parts import size_of
from flujo_client.schemas.schema import Check
from flujo_worker.aros.candidates import TextCandidate
from flujo_worker.aros.coerce import Coerced, Coercer
from flujo_worker.aros.complete import is_complete
from flujo_worker.aros.decode import decoded, same
from flujo_worker.aros.feedback import Misfit
from flujo_worker.aros.grammar import REPAIR
from flujo_worker.aros.last_resorts import WRONG, salvaged, variants
from flujo_worker.aros.outcome import CUT, NOT_JSON, TWO_READINGS, Preview, StageRefused, Transform
from flujo_worker.aros.reader import CLOSER, Reader, Reading
from flujo_worker.aros.scalars import INNER_QUOTES, ParseBudget
from flujo_worker.aros.type_judge import NOWHERE, Judge, TypeRefusal

_GOES_ON: Final = re.compile(r'[^\n"]*+"[^\n]*[}\]]')
"""After a value, on its line: a quote and a closing bracket. If the value's strings have quotes inside, one may end only there."""
_SHOWN: Final = 120
_TIERS: Final = {1: "json5", 2: "repair"}


@frozen
class Effort:
    """The limits of one round."""

    level: int | None
    """Of reading; None for strict decoding only."""
    coercion: ProcessingSettings | None
    """The allowed conversions; None for none."""


def efforts(settings: ProcessingSettings) -> list[Effort]:
    """Return the rounds that the settings allow, the least first, so that more settings never change what less gave."""
    rounds = [Effort(None, None), Effort(0, replace(settings, aop="minimal"))]
    if settings.full:
        rounds += [Effort(level, settings) for level in range(settings.level + 1)]
    return rounds


@frozen
class Accepted:
    """A value that matches the schema, and how it was found."""

    value: Any
    transforms: tuple[Transform, ...]
    branches: Mapping[str, int]
    preview: Preview | None = None


class ParseAttempt:
    """Tries candidates of one text, with one budget for all tries; `judge` is asked about values that the schema refuses."""

    def __init__(self, check: Check, text: str, budget: ParseBudget, judge: Judge | None = None) -> None:
        self.check, self.text, self.budget, self._judge = check, text, budget, judge
        self._refused: dict[tuple[TextCandidate, ProcessingSettings], StageRefused] = {}
        self._values: dict[TextCandidate, tuple[Any, ...]] = {}
        self._readings: dict[tuple[TextCandidate, int], Reading | StageRefused] = {}

    def strictly(self, candidate: TextCandidate) -> Accepted:
        """Decode and check; raises StageRefused with the place."""
        value = self._strict_value(candidate)
        if not value:
            raise StageRefused(NOT_JSON, "this is not strict JSON")
        if (refused := self._refused_by_all(value[0])) is not None:
            raise Misfit(self.check, value[0], [], (), refused)
        return Accepted(value[0], (), {})

    def _refused_by_all(self, value: Any) -> TypeRefusal | None:
        """Return None if the schema holds, or the type behind it takes the value; else where the type refuses it."""
        if self.check.valid(value):
            return None
        if self._judge is None:
            return NOWHERE
        self.budget.asks -= size_of(value, self.budget.asks + 1)
        return self._judge(value) if self.budget.asks >= 0 else NOWHERE

    def _strict_value(self, candidate: TextCandidate) -> tuple[Any, ...]:
        """Return the value of a candidate as a tuple of one, an empty one if it is not strict JSON; it is decoded once."""
        if candidate not in self._values:
            self._values[candidate] = decoded(self.text[candidate.start : candidate.stop])
        return self._values[candidate]

    def run(self, candidate: TextCandidate, effort: Effort) -> Accepted:
        """Try one candidate; raises StageRefused with the rule and the place."""
        if candidate.refusal is not None and (effort.level or 0) < REPAIR:
            raise _named(candidate.refusal)
        if effort.level is None or effort.coercion is None:
            return self.strictly(candidate)
        if value := self._strict_value(candidate):
            return self._decoded(value[0], candidate, effort.coercion)
        repaired = self._repaired(candidate, effort.level, effort.coercion)
        has_quotes = any(done.name == INNER_QUOTES for done in repaired.transforms)
        if has_quotes and _GOES_ON.match(self.text, candidate.stop):
            message = "quotes inside a string, and after the value one that may end the string: escape the quotes"
            raise StageRefused(TWO_READINGS, message)
        return repaired

    def _decoded(self, value: Any, candidate: TextCandidate, coercion: ProcessingSettings) -> Accepted:
        """Try a value that needed no repair: a higher level would read the same."""
        if (known := self._refused.get((candidate, coercion))) is not None:
            raise known
        try:
            return self._held(value, (), coercion)
        except StageRefused as refused:
            self._refused[candidate, coercion] = refused
            raise

    def _repaired(self, candidate: TextCandidate, level: int, coercion: ProcessingSettings) -> Accepted:
        part = self.text[candidate.start : candidate.stop]
        try:
            reading, tier = self._read(candidate, level)
        except StageRefused as refused:
            is_cut_short = candidate.kind == "scalar" or not candidate.finished
            if is_cut_short or level < REPAIR or refused.rule not in {CLOSER, NOT_JSON, CUT}:
                raise _named(refused) from None
            return self._rearranged(part, coercion, _named(refused))
        if reading.open and not is_complete(self.check, reading.value, reading.open):
            return self._closed(candidate, reading, level, coercion)
        return self._shown(part, self._held(reading.value, _repairs(reading, tier), coercion), tier)

    def _read(self, candidate: TextCandidate, level: int) -> tuple[Reading, int]:
        """Read at the lowest level that can: a text is not repaired further than it needs."""
        refused: StageRefused | None = None
        for tier in range(level + 1):
            if (candidate, tier) not in self._readings:
                self._readings[candidate, tier] = self._read_at(candidate, tier)
            reading = self._readings[candidate, tier]
            if isinstance(reading, Reading):
                return reading, tier
            refused = reading
        assert refused is not None
        raise refused

    def _read_at(self, candidate: TextCandidate, tier: int) -> Reading | StageRefused:
        reader = Reader(self.text, candidate.start, candidate.stop, tier, self.budget)
        try:
            return reader.whole(unclosed=candidate.unclosed)
        except StageRefused as refused:
            return refused

    def _closed(self, candidate: TextCandidate, reading: Reading, level: int, coercion: ProcessingSettings) -> Accepted:
        """Add missing closers, where members may be missing too: only if the model had finished, and only in one way."""
        path = reading.open[-1][0]
        if not candidate.finished:
            raise StageRefused(CUT, "the text ends before all that the schema declares is there", path)
        if level < REPAIR and any(is_list for _, is_list in reading.open):
            raise StageRefused(NOT_JSON, "the list is not closed", path)
        outer = "".join("]" if is_list else "}" for _, is_list in reversed(reading.open[:-1]))
        part = self.text[candidate.start : candidate.stop]
        if outer:
            part += "\n" + outer  # a comment may end the text
        return self._rearranged(part, coercion, StageRefused(NOT_JSON, "a closing bracket is missing", path), level)

    def _rearranged(self, part: str, coercion: ProcessingSettings, why: StageRefused, level: int = REPAIR) -> Accepted:
        """Try each text one bracket away; the only value that holds is taken."""
        held: list[Accepted] = []
        edits: list[str] = []
        texts = variants(part, level, self.budget)
        for text, edit in texts.items():
            try:
                reading = Reader(text, 0, len(text), level, self.budget).whole()
                done = Transform("tolerant", "closing-bracket"), *_repairs(reading, level)
                held.append(self._held(reading.value, done, coercion))
                edits.append(edit)
            except StageRefused as refused:
                why = refused if refused.rule not in {CLOSER, NOT_JSON, CUT} else why
        if not texts and level == REPAIR:
            held = self._salvaged(part, coercion)
        if not held:
            raise why
        other = next((index for index, one in enumerate(held) if not same(one.value, held[0].value)), None)
        if other is not None:
            raise StageRefused(TWO_READINGS, f"{WRONG}, and two readings fit: {edits[0]}, or {edits[other]}")
        return self._shown(part, held[0], level)

    def _salvaged(self, part: str, coercion: ProcessingSettings) -> list[Accepted]:
        value = salvaged(part, self.budget)
        try:
            return [] if value is None else [self._held(value, (Transform("tolerant", "json-repair"),), coercion)]
        except StageRefused:
            return []

    def _held(self, value: Any, done: tuple[Transform, ...], coercion: ProcessingSettings) -> Accepted:
        refused = self._refused_by_all(value)
        if refused is None:
            return Accepted(value, done, {})
        found: Coerced = Coercer(self.check, coercion, self.budget).run(value)
        if found.transforms:
            refused = self._refused_by_all(found.value)
        if refused is not None:
            raise Misfit(self.check, found.value, found.refusals, done + found.transforms, refused)
        return Accepted(found.value, done + found.transforms, found.branches)

    @staticmethod
    def _shown(part: str, accepted: Accepted, tier: int) -> Accepted:
        if tier == 0:
            return accepted
        return replace(accepted, preview=Preview(_bounded(part), _bounded(repr(accepted.value))))


def _repairs(reading: Reading, tier: int) -> tuple[Transform, ...]:
    stage = "tolerant" if tier else "syntactic"
    named = (*((_TIERS[tier],) if tier else ()), *reading.repairs)
    return tuple(Transform(stage, name) for name in named)


def _named(refused: StageRefused) -> StageRefused:
    """`closer` is a word between the reader and `last_resorts`; outside it is text that cannot be read."""
    if refused.rule == CLOSER:
        refused.rule = NOT_JSON
    return refused


def _bounded(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 2 :]}"
