"""Record a decision's answers, which a replay reads instead of asking, and its log lines, which become the run's events.

It must not ask anything itself. In: each question with its answer, and the log lines meanwhile. Out: the decision with both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flujo_client.contract.outcome import Event
from flujo_client.serial import Packed
from flujo_worker.domain.values import CallUserCode, Decision, UserCodeFailed, UserCodePaused


@dataclass(frozen=True, slots=True)
class RecordedAnswers:
    """Notes of one decision."""

    answers: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def note(self, call: CallUserCode, answer: Any, events: Sequence[Event]) -> None:
        """Record an answer, which may be an error, and the log lines that led to it."""
        self.answers.append({"role": call.role, "path": call.path, **_noted(answer)})
        self.events.extend(events)

    def put_into(self, decision: Decision) -> Decision:
        """Return the decision with all of it; log lines come before the decision's own events."""
        if not self.answers:
            return decision
        return replace(decision, answers=tuple(self.answers), events=(*self.events, *decision.events))


def _noted(answer: Any) -> dict[str, Any]:
    if isinstance(answer, UserCodePaused):
        return {"paused": answer.message, "refused": answer.fault.to_tree()}
    return {"refused": answer.fault.to_tree()} if isinstance(answer, UserCodeFailed) else {"answer": _recorded(answer)}


def _recorded(answer: Any) -> Any:
    """Return an answer as it is stored with the attempt: a plain one unchanged, a value as its digest, many values as their number."""
    if isinstance(answer, Packed):
        return {"digest": answer.digest}
    if isinstance(answer, list) and all(isinstance(each, Packed) for each in answer):
        return {"values": len(answer)}
    if isinstance(answer, (list, tuple)):
        return [_recorded(each) for each in answer]
    return answer
