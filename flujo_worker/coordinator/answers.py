"""Answers to the questions of a decision: scopes that are known without reading them, and what user code has answered.

Scopes above an attempt that this process claimed in the merge that created it are as that merge left them: under that claim, only the attempt's
own merge changes them, or a stop of its run, after which no merge is accepted. Answers are recorded for a replay, which reads them instead of
asking, with the log lines meanwhile, which become the run's events. This asks nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any

from flujo_client.contract.outcome import Event
from flujo_client.frozen import frozen
from flujo_client.serial import Packed
from flujo_worker.domain import values
from flujo_worker.domain.values import AttemptReport, CallUserCode, Decision, ReadScope, ScopeRow


@frozen
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
        return replace(decision, answers=tuple(self.answers), events=(*self.events, *decision.events))


def _noted(answer: Any) -> dict[str, Any]:
    if isinstance(answer, values.UserCodePaused):
        return {"paused": answer.message, "refused": answer.fault.to_tree()}
    if isinstance(answer, values.UserCodeFailed):
        return {"refused": answer.fault.to_tree()}
    return {"answer": _recorded(answer)}


def _recorded(answer: Any) -> Any:
    """Return an answer as it is stored with the attempt: a plain one unchanged, a value as its digest, many values as their number."""
    if isinstance(answer, Packed):
        return {"digest": answer.digest}
    if isinstance(answer, list) and all(isinstance(each, Packed) for each in answer):
        return {"values": len(answer)}
    if isinstance(answer, (list, tuple)):
        return [_recorded(each) for each in answer]
    return answer


class KnownScopes:
    """The scopes above the last attempt that was claimed ahead."""

    def __init__(self) -> None:
        self._claim: tuple[str, str] | None = None
        self._rows: dict[str, ScopeRow] = {}

    def find(self, notice: AttemptReport, request: ReadScope) -> ScopeRow | None:
        """Return the row of a scope that a decision asks for, if it is known."""
        if request.children or request.child_run is not None or not self._are_of(notice):
            return None
        return self._rows.get(request.address)

    def note(self, decision: Decision, claim_id: str) -> None:
        """Remember the scopes after a merge that claimed the next attempt. That attempt's own scope is not known completely."""
        notice, following = decision.notice, decision.next[0]
        kept = self._rows if self._are_of(notice) else {}
        moved = {each.address for each in decision.moves}
        rows = {address: row for address, row in kept.items() if address not in moved}
        self._rows = rows | {row.address: row for row in decision.above}
        self._claim = following.key_in(notice.envelope.ticket.run), claim_id

    def _are_of(self, notice: AttemptReport) -> bool:
        return self._claim == (notice.envelope.key, notice.claim_id)
