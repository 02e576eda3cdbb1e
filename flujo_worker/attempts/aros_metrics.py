"""The aggregates of an attempt's AROS events, stored in its row, so that they survive storage without event rows.

It must not read a store. In: the events of one attempt; out: `aros.*` attributes, none for an attempt in which AROS did nothing. Changes
that shadow mode would have made are counted separately.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flujo_client.contract.outcome import Event

MOST_TRANSFORMS: Final = 20
_PREFIXES: Final = ("aros.", "output.", "grammar.", "reasoning.")
_PRECHECK: Final = "aros.reasoning.precheck."


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
