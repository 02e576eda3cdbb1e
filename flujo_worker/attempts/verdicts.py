"""The event that says how good something was judged: by a validator, or in an output that is a judgement itself.

It must not judge. In: a verdict, or an output. Out: events, which `flujo lens evals` lists.
"""

from __future__ import annotations

from typing import Any, Final

from flujo_client.contract.checklist import Checklist
from flujo_client.contract.search import Score
from flujo_client.contract.stats import JUDGED
from flujo_client.redact import preview
from flujo_worker.observe.log import emit

_LONGEST: Final = 500


def emit_verdict(judge: str, score: float, feedback: str | None, *, passed: bool | None = None) -> None:
    """Emit a judge's score, and whether that passed, where the judge decides."""
    shown = None if feedback is None else preview(feedback, _LONGEST)
    emit(JUDGED, judge=judge, score=score, passed=passed, feedback=shown)


def emit_judgement(step: str, output: Any) -> None:
    """Emit the score of an output that is a judged checklist, or an evaluator's answer."""
    if isinstance(output, Score):
        emit_verdict(step, output.score, output.reason)
    elif isinstance(output, Checklist) and any(item.passed is not None for item in output.items):
        refused = "; ".join(f"{item.description}: {item.feedback or 'not passed'}" for item in output.failed)
        emit_verdict(step, output.score, refused or None, passed=output.is_passed)
