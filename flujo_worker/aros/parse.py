"""A model's text in, a value that the schema holds for out, or where and why not: `parse` and `prepare`.

The fast path decodes and checks; only a text that fails there is looked at: layer by layer of encoding, effort by effort, candidate by
candidate, and what is chosen must be the only choice.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from itertools import groupby, product
from typing import Any, Final, NamedTuple

from flujo_client.contract.processing import ProcessingSettings
from flujo_client.schemas.parts import Schema
from flujo_client.schemas.schema import Check, UnusableSchema
from flujo_worker.aros.attempt import Accepted, Effort, ParseAttempt, efforts
from flujo_worker.aros.candidates import Layer, TextCandidate
from flujo_worker.aros.decode import ERRORS, canonical, decode
from flujo_worker.aros.feedback import Misfit, written
from flujo_worker.aros.outcome import (
    BAD_SCHEMA,
    CUT,
    LIMIT,
    NO_BRANCHES,
    NO_JSON,
    NOT_JSON,
    ParseOutcome,
    StageRefused,
    Transform,
    Unfit,
    pointer_of,
)
from flujo_worker.aros.scalars import Clock, ParseBudget
from flujo_worker.aros.several import Match, called_final, check_one, meant
from flujo_worker.aros.type_judge import Judge
from flujo_worker.aros.wanted import Wanted, words_of

Parser = Callable[[str], ParseOutcome]
Settings = ProcessingSettings | Mapping[str, Any]

MOST_LAYERS: Final = 16
_PLAIN: Final[Callable[[tuple[Any, ...]], ParseOutcome]] = functools.partial(tuple.__new__, ParseOutcome)
_REST: Final = (None, None, "parse", (), NO_BRANCHES, 0.0, None, None, None, "", 0)


def parse(
    raw: str, schema: Schema, settings: Settings, *, clock: Clock | None = None, judge: Judge | None = None
) -> ParseOutcome:
    """Read the value out of one text, by a cached function of `prepare`. Raises BlueprintError: for settings that cannot be; never for a text."""
    chosen = ProcessingSettings.read(settings)
    try:
        written_schema = json.dumps(schema)
    except (RecursionError, TypeError, ValueError):
        return prepare(schema, chosen, clock=clock, judge=judge)(raw)
    return _kept(written_schema, chosen, clock, judge)(raw)


@functools.lru_cache(maxsize=128)
def _kept(schema: str, settings: ProcessingSettings, clock: Clock | None, judge: Judge | None) -> Parser:
    return prepare(json.loads(schema), settings, clock=clock, judge=judge)


def prepare(schema: Schema, settings: Settings, *, clock: Clock | None = None, judge: Judge | None = None) -> Parser:
    """Compile a schema, and return the function that reads texts by it. The function never raises.

    A schema that cannot be compiled refuses every text, with the rule `bad-schema`.

    Args:
        schema: JSON Schema 2020-12.
        settings: the keys of a step's `processing` block.
        clock: returns seconds of processor time; without one `elapsed_s` is 0.0, and only steps are counted.
        judge: returns whether the type behind the schema takes a value that the schema refuses; see `type_judge`.

    Raises BlueprintError: for settings that cannot be.
    """
    chosen = ProcessingSettings.read(settings)
    try:
        check = Check(schema)
    except UnusableSchema as wrong:
        outcome = _unusable(wrong)
        return lambda _raw: outcome
    search, is_valid = _Search(check, chosen, clock, judge), check.is_valid

    def parser(raw: str) -> ParseOutcome:
        try:
            value = decode(raw)
            if is_valid(value):
                return _PLAIN((True, value, *_REST))
        except ERRORS:
            pass
        return search.outcome(raw)

    if clock is None:
        return parser

    def timed(raw: str) -> ParseOutcome:
        start = clock()
        outcome = parser(raw)
        return outcome._replace(elapsed_s=clock() - start)

    return timed


class Chosen(NamedTuple):
    """The candidate of one layer that is the answer, and what decided between several."""

    candidate: TextCandidate
    accepted: Accepted
    match: Match
    by: str | None


class _Search:
    """The slow path: what is done with a text that is not right as it came."""

    def __init__(self, check: Check, settings: ProcessingSettings, clock: Clock | None, judge: Judge | None) -> None:
        self.check, self.settings, self.clock, self.judge = check, settings, clock, judge
        self.efforts = efforts(settings)
        self.wanted = Wanted.of(check)
        self.words = words_of(check.root)

    def outcome(self, raw: str) -> ParseOutcome:
        """Search a text. A part of a schema is compiled when it is first needed, also for a message: it may be unusable."""
        try:
            return self._outcome(raw)
        except UnusableSchema as wrong:
            return _unusable(wrong)

    def _outcome(self, raw: str) -> ParseOutcome:
        try:
            if self.settings.aop == "off" or len(raw) > self.settings.max_characters:
                self._strictly(raw)
            return self._found(raw)
        except StageRefused as refused:
            return _refusal(refused)
        except RecursionError:
            return _refusal(StageRefused(LIMIT, "nested too deep", stage="semantic"))

    def _strictly(self, raw: str) -> None:
        budget = ParseBudget.of(raw, self.settings, None, self.words)
        try:
            ParseAttempt(self.check, raw, budget, self.judge).strictly(TextCandidate(0, len(raw), "scalar"))
        except StageRefused as refused:
            if refused.rule != NOT_JSON or self.settings.aop == "off":
                raise
            most = self.settings.max_characters
            message = f"this is not strict JSON, and too long to search: {len(raw)} of {most} characters (coercion.max_characters)"
            raise StageRefused(LIMIT, message, stage="extract") from None

    def _found(self, raw: str) -> ParseOutcome:
        budget = ParseBudget.of(raw, self.settings, self.clock, self.words)
        found = self._layers(raw, budget)
        layers = [(each, ParseAttempt(self.check, each.text, budget, self.judge)) for each in found]
        why = StageRefused(NO_JSON, "no JSON value found in the text", stage="extract")
        for effort, depth in product(self.efforts, range(layers[-1][0].depth + 1)):
            held: list[tuple[Layer, Chosen]] = []
            for layer, attempt in layers:
                chosen = self._chosen(layer, attempt, effort) if layer.depth == depth else None
                if isinstance(chosen, Chosen):
                    held.append((layer, chosen))
                elif chosen is not None:
                    why = chosen
            if held:
                check_one([(layer.text, chosen.match) for layer, chosen in held])
                return _acceptance(*held[0])
        raise why

    def _layers(self, raw: str, budget: ParseBudget) -> list[Layer]:
        layers = [Layer.of(raw, 0, self.wanted)]
        if self.wanted.kinds == {"string"}:  # what is to be a string is never unescaped
            return layers
        for layer in layers:
            if layer.depth < self.settings.max_unescape_depth and len(layers) < MOST_LAYERS:
                layers += [Layer.of(text, layer.depth + 1, self.wanted) for text in layer.below(budget)]
        return layers

    def _chosen(self, layer: Layer, attempt: ParseAttempt, effort: Effort) -> Chosen | StageRefused | None:
        """Choose among the candidates of one layer: those of the schema's own kind go before others, and one value must be left."""
        found = layer.found(effort.level or 0, attempt.budget)
        if found.cut is not None:
            return StageRefused(CUT, found.cut.message, found.cut.path, "extract")
        first: StageRefused | None = None
        for _, tier in groupby(found.candidates, key=layer.rank):
            held: dict[Match, tuple[TextCandidate, Accepted]] = {}
            refused: dict[Match, StageRefused] = {}
            for candidate in tier:
                done = _tried(attempt, candidate, effort)
                if isinstance(done, Accepted):
                    held[Match(candidate.start, candidate.stop, canonical(done.value))] = candidate, done
                else:
                    refused[Match(candidate.start, candidate.stop, "")] = done
                    first = first or done
            if held and (called := called_final(layer.text, list(held), list(refused))) is not None:
                return refused[called]
            if held:
                match, by = meant(layer.text, list(held))
                return Chosen(*held[match], match, by)
        return first and self._refused(layer, found.candidates, first)

    @staticmethod
    def _refused(layer: Layer, candidates: list[TextCandidate], first: StageRefused) -> StageRefused | None:
        """Return why the best candidate was rejected, if it looks like a value; its value, if no other could be meant."""
        best, *rest = candidates
        if best.kind == "scalar" and first.stage != "semantic":
            return None
        if isinstance(first, Misfit) and all(one.kind != best.kind for one in rest):
            first.unfit = Unfit(first.value, (*_around(layer, best), *first.done))
        return first


def _tried(attempt: ParseAttempt, candidate: TextCandidate, effort: Effort) -> Accepted | StageRefused:
    try:
        return attempt.run(candidate, effort)
    except StageRefused as refused:
        if refused.rule == LIMIT:
            raise
        return refused


def _acceptance(layer: Layer, chosen: Chosen) -> ParseOutcome:
    candidate, accepted, by = chosen.candidate, chosen.accepted, chosen.by
    decided = (Transform("extract", f"chosen-by-{by}"),) if by else ()
    transforms = (*_around(layer, candidate), *decided, *accepted.transforms)
    return ParseOutcome(
        ok=True,
        value=accepted.value,
        stage=transforms[-1].stage if transforms else "parse",
        transforms=transforms,
        branches=accepted.branches,
        preview=accepted.preview,
    )


def _around(layer: Layer, candidate: TextCandidate) -> list[Transform]:
    """Return what was removed around a candidate."""
    done = [Transform("unescape", "unescape")] * layer.depth
    done += [Transform("extract", name) for name in layer.removed]
    if candidate.size < len(layer.text.strip()):
        done.append(Transform("extract", "region"))
    return done


def _unusable(wrong: UnusableSchema) -> ParseOutcome:
    return _refusal(StageRefused(LIMIT if wrong.is_endless else BAD_SCHEMA, wrong.message, stage="semantic"))


def _refusal(why: StageRefused) -> ParseOutcome:
    refused = why.in_words()
    return ParseOutcome(
        ok=False,
        feedback=written(refused),
        rule=refused.rule,
        stage=refused.stage,
        pointer=pointer_of(refused.path),
        unfit=refused.unfit,
        what=refused.what,
        more=refused.more,
    )
