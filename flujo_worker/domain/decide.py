"""What follows from an outcome: `decide(plan, notice) → Decision`.

Pure: the same notice gives the same decision, so a repeated one changes nothing. One function per outcome kind in a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_client.contract.outcome import Event
from flujo_client.pipeline.step import Backoff
from flujo_worker.domain.retry import delay_s, may_retry
from flujo_worker.domain.transitions import ATTEMPT, RUN, SCOPE, require
from flujo_worker.domain.values import Close, Decision, End, Move, NextAttempt, Notice

if TYPE_CHECKING:
    from collections.abc import Callable

    from flujo_client.pipeline.plan import Node, Plan


def decide(plan: Plan, notice: Notice, *, backoff: Backoff | None = None) -> Decision:
    """Decide what follows.

    Args:
        plan: the pipeline the run was started with.
        notice: what came of an attempt.
        backoff: the waits of steps that set none of their own.
    """
    place = [node.name for node in plan.nodes].index(notice.envelope.step)
    decision = _DECIDERS[notice.outcome.kind](plan, place, notice, backoff or Backoff())
    require(ATTEMPT, "running", decision.close.status)
    require(SCOPE, "open", decision.move.status)
    if decision.end is not None:
        require(RUN, "running", decision.end.status)
    return decision


def _succeeded(plan: Plan, place: int, notice: Notice, _: Backoff) -> Decision:
    outcome, following = notice.outcome, place + 1
    event = Event("step.succeeded", {"step": plan.nodes[place].name, "attempts": notice.envelope.number})
    if following == len(plan.nodes):
        move = Move(following, "succeeded", merges=True, output=outcome.output, context=outcome.context)
        end = End("succeeded", output=outcome.output)
        return Decision(notice, Close("succeeded"), move, end=end, events=(event, Event("run.succeeded")))
    move = Move(following, merges=True, output=outcome.output, context=outcome.context)
    node = plan.nodes[following]
    next_attempt = NextAttempt(notice.envelope.address, node.name, 1, _queue(node, notice))
    return Decision(notice, Close("succeeded"), move, next=next_attempt, events=(event,))


def _failed(plan: Plan, place: int, notice: Notice, backoff: Backoff) -> Decision:
    node, envelope, fault = plan.nodes[place], notice.envelope, notice.outcome.fault
    if fault is None or not may_retry(fault, envelope.number, node.max_attempts):
        return _stop(plan, place, notice, reason="error")
    wait = delay_s(node.backoff or backoff, envelope.number, envelope.key, fault.retry_after_s)
    return Decision(
        notice,
        Close("failed", "error"),
        Move(place),
        next=NextAttempt(
            envelope.address,
            node.name,
            envelope.number + 1,
            _queue(node, notice),
            delay_s=wait,
            guidance=fault.feedback,
        ),
        events=(
            Event(
                "flujo.retry", {"step": node.name, "reason": fault.feedback, "delay_seconds": round(wait, 3)}, "warning"
            ),
        ),
    )


def _aborted(plan: Plan, place: int, notice: Notice, _: Backoff) -> Decision:
    return _stop(plan, place, notice, reason="aborted")


def _lost(plan: Plan, place: int, notice: Notice, _: Backoff) -> Decision:
    return _stop(plan, place, notice, reason="lost")


def _stop(plan: Plan, place: int, notice: Notice, *, reason: str) -> Decision:
    """The step failed for good, and a failed step stops its pipeline."""
    fault = notice.outcome.fault
    said = {"step": plan.nodes[place].name, "reason": reason, "feedback": fault.feedback if fault else None}
    return Decision(
        notice,
        Close("failed", reason),
        Move(place, "failed"),
        end=End("failed", f"step '{plan.nodes[place].name}' failed", fault),
        events=(Event("step.failed", said, "error"), Event("run.failed", said, "error")),
    )


def _queue(node: Node, notice: Notice) -> str:
    return node.queue or notice.envelope.ticket.queue


_DECIDERS: dict[str, Callable[[Plan, int, Notice, Backoff], Decision]] = {
    "success": _succeeded,
    "failure": _failed,
    "aborted": _aborted,
    "lost": _lost,
}
