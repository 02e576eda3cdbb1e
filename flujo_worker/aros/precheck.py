"""The decisions of the reasoning precheck, without agents: find a plan, missing keys, the agreement of plans, the answer of a judge."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import fmean
from typing import Any, Final, Literal

from pydantic import BaseModel

from flujo_client.frozen import frozen
from flujo_worker.aros.convert import fits
from flujo_worker.aros.decode import decoded
from flujo_worker.aros.feedback import ROOT
from flujo_worker.aros.parse import parse

WRONG_KIND: Final = (ROOT,)
"""What `lacks_basics` says of a candidate that is not even of the right kind."""

MAX_PREVIEW: Final = 200
"""Characters of feedback that an event shows."""

_JSON: Final = (str, bool, int, float, dict, list)
_WORD: Final = re.compile(r"\w+")
_LONGEST_CHAIN: Final = 8
_VERDICT: Final = {"type": ["object", "array", "boolean", "number"]}


@frozen
class GateFinding:
    """The finding of a gate, as in its event."""

    result: Literal["pass", "fail", "skipped"]
    reason: str
    """A code for programs."""
    score: float | None = None
    keys: tuple[str, ...] = ()
    """The missing keys, or the required ones."""
    error: str | None = None
    """The class of a judge's exception."""
    feedback: str | None = None
    """For the model."""

    def figures(self) -> dict[str, Any]:
        """Return the result, and the score if there is one, as an event's attributes."""
        return {"result": self.result} | ({} if self.score is None else {"score": self.score})

    def attributes(self) -> dict[str, Any]:
        """Return all there is of it as an event's attributes, feedback as a bounded preview."""
        feedback = self.feedback
        if feedback is not None and len(feedback) > MAX_PREVIEW:
            feedback = f"{feedback[: MAX_PREVIEW - 1]}…"
        rest = {"reason": self.reason, "keys": list(self.keys), "error": self.error, "feedback": feedback}
        return self.figures() | {name: value for name, value in rest.items() if value}


@frozen
class PlanVerdict:
    """A judge's verdict on a plan: `score` from 0 to 1, `feedback` for the author of the next one."""

    passed: bool
    score: float | None = None
    feedback: str | None = None

    def held_to(self, threshold: float) -> PlanVerdict:
        """Refuse a plan whose score is below the threshold, with the figures; a score equal to it passes."""
        if self.score is None or self.score >= threshold:
            return self
        figures = f"the plan scored {self.score}, at least {threshold} is needed"
        return replace(self, passed=False, feedback=f"{figures}: {self.feedback}" if self.feedback else figures)

    def finding(self, threshold: float) -> GateFinding:
        """Return the finding of the verdict; a rejection always has feedback."""
        held = self.held_to(threshold)
        if held.passed:
            return GateFinding("pass", "validator", held.score)
        reason = "score_below_threshold" if self.passed else "refused"
        return GateFinding("fail", reason, held.score, feedback=held.feedback or "the plan was refused")


def plan_in(data: Any, delimiters: tuple[str, str]) -> str | None:
    """Find the plan an input carries; None if it carries none, because plans are optional.

    That is a text with a plan between the delimiters; or a mapping or model with a text member `plan`, or with such a text.
    """
    if isinstance(data, str):
        return _between(data, delimiters)
    if not isinstance(data, Mapping | BaseModel):
        return None
    texts = {name: member for name, member in dict(data).items() if isinstance(member, str)}
    between = (_between(text, delimiters) for text in texts.values())
    return texts.get("plan", "").strip() or next((plan for plan in between if plan), None)


def _between(text: str, delimiters: tuple[str, str]) -> str | None:
    opening, closing = delimiters
    start = text.find(opening)
    while start >= 0 and (end := text.find(closing, start + len(opening))) >= 0:
        if plan := text[start + len(opening) : end].strip():
            return plan
        start = text.find(opening, end + len(closing))
    return None


def found_at(context: Any, path: str) -> Any:
    """Follow a dotted path through mappings and attributes; None where it leads nowhere."""
    for name in path.split("."):
        context = context.get(name) if isinstance(context, Mapping) else getattr(context, name, None)
    return None if inspect.isroutine(context) else context


def missing_keys(context: Any, keys: Iterable[str]) -> tuple[str, ...]:
    """List the keys, or dotted paths, that are absent or null."""
    return tuple(key for key in keys if found_at(context, key) is None)


def lacks_basics(candidate: Any, schema: Any) -> tuple[str, ...]:
    """List the required top-level members that a decoded value lacks, at a glance; `WRONG_KIND` if the schema asks for another kind."""
    root = _root(schema)
    if candidate is not None and not isinstance(candidate, _JSON):
        return ()
    named = root.get("type")
    kinds = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    if kinds and not any(fits(candidate, kind) for kind in kinds):
        return WRONG_KIND
    required = root.get("required")
    if not isinstance(candidate, dict) or not isinstance(required, list):
        return ()
    return tuple(name for name in required if isinstance(name, str) and name not in candidate)


def _root(schema: Any) -> Mapping[str, Any]:
    """Follow the references that a recursive model's schema begins with."""
    root, definitions = schema, schema.get("$defs") if isinstance(schema, Mapping) else None
    for _ in range(_LONGEST_CHAIN):
        reference = root.get("$ref") if isinstance(root, Mapping) else None
        if not isinstance(reference, str) or not isinstance(definitions, Mapping):
            break
        root = definitions.get(reference.removeprefix("#/$defs/"))
    return root if isinstance(root, Mapping) else {}


def decoded_object(text: str) -> dict[str, Any] | None:
    """Decode a text that is a JSON object without repair; None for any other."""
    return next((value for value in decoded(text) if isinstance(value, dict)), None)


def agreement(texts: Sequence[str]) -> float:
    """Return how much texts agree, 0 to 1: the mean pairwise Jaccard index of their words, ignoring case."""
    words = [frozenset(_WORD.findall(text.lower())) for text in texts]
    pairs = combinations(words, 2)
    return fmean([len(one & other) / len(one | other) if one | other else 1.0 for one, other in pairs] or [1.0])


def verdict_of(answer: Any) -> PlanVerdict:
    """Read what a judge answered with, a text as JSON; raises TypeError, which names what is allowed. A score alone passes until it is held to a threshold."""
    match parse(answer, _VERDICT, {}).value if isinstance(answer, str) else answer:
        case bool() as passed:
            return PlanVerdict(passed)
        case int() | float() as score:
            return _verdict(answer, None, score, None)
        case (passed, feedback):
            return _verdict(answer, passed, None, feedback)
        case Mapping() as members:
            return _named(answer, members.get)
        case other:
            return _named(answer, lambda name: getattr(other, name, None))


def _named(answer: Any, get: Callable[[str], Any]) -> PlanVerdict:
    passed = get("passed")
    return _verdict(answer, get("is_valid") if passed is None else passed, get("score"), get("feedback"))


def _verdict(answer: Any, passed: Any, score: Any, feedback: Any) -> PlanVerdict:
    if passed is None and score is not None:
        passed = True
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    is_score = score is None or (is_number and 0 <= score <= 1)
    if isinstance(passed, bool) and is_score and isinstance(feedback, str | None):
        return PlanVerdict(passed, score, feedback or None)
    raise TypeError(
        "a plan's judge must answer with an object or a mapping with `passed` or `is_valid`, `score` from 0 to 1 and `feedback`, "
        f"a bool, (bool, feedback), a score, or JSON of one of these, got a {type(answer).__name__}"
    )
