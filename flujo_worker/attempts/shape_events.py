"""The events of one output that was made to fit, stage by stage; and an attempt's aggregates of them.

The aggregates are stored in the attempt's row, so that they survive storage without event rows. Changes that shadow mode would have made are
counted separately.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from flujo_worker.observe.log import emit

if TYPE_CHECKING:  # most steps have no output that AROS reads
    from flujo_client.contract.outcome import Event
    from flujo_worker.aros.outcome import ParseOutcome, Preview

Data = Mapping[str, Any]
_SHOWN: Final = 200
MOST_TRANSFORMS: Final = 20
_PREFIXES: Final = ("aros.", "output.", "grammar.", "reasoning.")
_PRECHECK: Final = "aros.reasoning.precheck."
_MOST_CONVERSIONS: Final = 20
_WHY: Final = {
    "extract": "text around it",
    "tolerant": "no JSON",
    "syntactic": "no JSON",
    "semantic": "other types",
    "custom": "refused by the schema",
}


def emit_outcome(outcome: ParseOutcome, text: str, schema: Data | None, shadow: Data, more: Data) -> None:
    """Emit what was done; nothing for a text that was valid unchanged. `shadow` marks every event, and `more` is emitted with a refusal."""
    types = {"expected_type": _expected(schema), "actual_type": _actual(text)}
    for stage, group in groupby(outcome.transforms, key=lambda each: stage_of(each.stage)):
        done = list(group)
        emit("output.coercion.attempt", stage=stage, reason=_WHY[stage], **types, **shadow)
        data: dict[str, Any] = {"transforms": [each.name for each in done]}
        if stage == "semantic":
            data |= {"conversions": [each.attributes() for each in done][:_MOST_CONVERSIONS], **_branches(outcome)}
        if stage == "tolerant" and outcome.preview is not None:
            data |= {"patch_preview": outcome.preview._asdict(), "similarity": _similarity(outcome.preview)}
        emit("output.coercion.success", stage=stage, **data, **shadow)
    if not outcome.ok:
        emit("output.coercion.attempt", stage=stage_of(outcome.stage), reason=outcome.rule, **types, **shadow)
        emit_refusal(stage_of(outcome.stage), outcome.rule, outcome.pointer, outcome.feedback, shadow, more)
    if outcome.transforms or not outcome.ok:
        _sum_up(outcome, shadow)


def emit_refusal(
    stage: str, rule: str | None, pointer: str | None, feedback: str | None, shadow: Data, more: Data
) -> None:
    """Report that a stage refused an output, where and why."""
    data = {"rule": rule, "pointer": pointer, "error_preview": (feedback or "")[:_SHOWN]}
    emit("output.coercion.fail", level="warning", stage=stage, **data, **shadow, **more)


def emit_custom(changed_by: Sequence[str]) -> None:
    """Report that output processors changed what AROS had accepted."""
    if changed_by:
        emit("output.coercion.success", stage="custom", transforms=list(changed_by))


def stage_of(name: str) -> str:
    """Undoing an encoding is a part of Stage 0, and a text that was never repaired failed at its syntax."""
    return {"unescape": "extract", "parse": "syntactic"}.get(name, name)


def _sum_up(outcome: ParseOutcome, shadow: Data) -> None:
    acted = {_family(each.stage) for each in outcome.transforms}
    failed = None if outcome.ok else _family(outcome.stage)
    for family in ("syntactic", "coercion"):
        result = "fail" if family == failed else "success" if family in acted else "skip"
        why: dict[str, Any] = {"rule": outcome.rule} if family == failed else {}
        emit(f"aros.aop.{family}.{result}", **why, **shadow)


def _family(stage: str) -> str:
    return "coercion" if stage in {"semantic", "custom"} else "syntactic"


def _similarity(preview: Preview) -> float:
    """Return how much of the text is unchanged, from 0 to 1; of the previews only, because the cost grows with their product."""
    return round(difflib.SequenceMatcher(None, preview.before, preview.after, autojunk=False).ratio(), 2)


def _branches(outcome: ParseOutcome) -> dict[str, Any]:
    if not outcome.branches:
        return {}
    return {"branch_index": next(iter(outcome.branches.values())), "branch_choices": dict(outcome.branches)}


def _expected(schema: Data | None) -> str:
    kind = (schema or {}).get("type", "any")
    return kind if isinstance(kind, str) else " or ".join(map(str, kind))


def _actual(text: str) -> str:
    return {"{": "object", "[": "array", '"': "string", "": "empty"}.get(text.strip()[:1], "text")


def tally(events: Iterable[Event]) -> dict[str, Any]:
    """Count interventions, not attempts at them: what succeeded, what structured output was in force, how the precheck ended."""
    counts: dict[str, Any] = {}
    for event in events:
        if not event.name.startswith(_PREFIXES):
            continue
        for key, name in (("agent", "aros.agent_id"), ("model", "aros.model_id")):
            if key in event.data:
                counts.setdefault(name, event.data[key])
        _count(counts, event)
    return counts


def _count(counts: dict[str, Any], event: Event) -> None:
    data, shadow = event.data, ".shadow" if event.data.get("shadow") else ""
    match event.name:
        case "output.coercion.success":
            _add(counts, f"aros{shadow}.coercion.total")
            _add(counts, f"aros{shadow}.coercion.stage.{data['stage']}")
            name = f"aros{shadow}.coercion.transforms"
            counts[name] = list(dict.fromkeys((*counts.get(name, ()), *data["transforms"])))[:MOST_TRANSFORMS]
        case "output.coercion.fail":
            _add(counts, f"aros{shadow}.coercion.failed")
            _add(counts, f"aros{shadow}.coercion.failed.{data['rule']}")
        case "aros.soe.enabled":
            _add(counts, "aros.soe.count")
            counts["aros.soe.mode"] = data["mode"]
        case "aros.soe.skipped":
            _add(counts, "aros.soe.skipped")
            _add(counts, f"aros.soe.skipped.{data['reason']}")
        case "grammar.enforce.fail":
            _add(counts, f"aros{shadow}.grammar.failed")
        case "output.cut" if data["finish_reason"] == "length":
            _add(counts, "aros.cut")
        case name if name.startswith(_PRECHECK):
            _add(counts, "aros.precheck.total")
            _add(counts, f"aros.precheck.{name.removeprefix(_PRECHECK)}")


def _add(counts: dict[str, Any], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1
