"""Decide what follows from an outcome: `decide(plan, notice)`, a generator of questions that returns a Decision.

Pure: the same notice and answers give the same decision, so a repeated one changes nothing. One function for each kind of outcome,
one module for each kind of node, in two tables.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeAlias

from flujo_client.contract.envelope import CONTROL_QUEUE
from flujo_client.contract.outcome import Fault
from flujo_client.contract.records import SEQUENCE
from flujo_client.errors import PausedException
from flujo_client.plan import kinds
from flujo_client.plan.plan import Backoff, Node, Plan
from flujo_worker.domain import human
from flujo_worker.domain.draft import DecisionBuilder, Kind, ScopeState, Steps
from flujo_worker.domain.flow import cancel, fail, give_up, go_on
from flujo_worker.domain.retry import LONGEST_S, delay_s, may_retry
from flujo_worker.domain.transitions import ATTEMPT, RUN, require
from flujo_worker.domain.values import AttemptReport, CallUserCode, CloseAttempt, Decision, ReadScope, UserCodePaused
from flujo_worker.domain.waiting import carried_out, stops

Deciding: TypeAlias = "Generator[CallUserCode | ReadScope, Any, Decision]"


class KindModules(dict[str, Kind]):
    """The functions of each kind, from the module of its name, which is imported for the first node of that kind."""

    def __missing__(self, name: str) -> Kind:
        kind: Kind = import_module(f"flujo_worker.domain.{kinds.KINDS[name].name}").KIND
        self[name] = kind
        return kind


KINDS: Final = KindModules()


def decide(
    plan: Plan, notice: AttemptReport, *, backoff: Backoff | None = None, control_queue: str = CONTROL_QUEUE
) -> Deciding:
    """Decide what follows from an attempt's outcome, by the plan that the run was started with.

    Send it the answers to the questions it yields; a `UserCodeFailed` or `UserCodePaused` thrown in is an answer too. `backoff` has the retry delays of
    steps that set none, and `control_queue` is the queue of starts and joins.
    """
    if (fault := notice.outcome.fault) is not None:  # whatever fails with it names this attempt
        fault = replace(fault, key=notice.envelope.key)
        notice = replace(notice, outcome=replace(notice.outcome, fault=fault))
    pauses: dict[int, UserCodePaused] = {}
    known: list[tuple[int, Any]] = []
    while True:
        draft = DecisionBuilder(plan, notice, KINDS, control_queue, pauses)
        steps = _DECIDERS[notice.outcome.kind](draft, draft.own(), backoff or Backoff())
        paused = yield from carried_out(draft, steps, known)
        if paused is None:
            break
        pauses[draft.stop] = paused
    require(ATTEMPT, "running", draft.close.status)
    if draft.end is not None:
        require(RUN, "running", draft.end.status)
    return draft.decision()


def _succeeded(draft: DecisionBuilder, own: ScopeState, _: Backoff) -> Steps:
    match draft.notice.envelope.kind:
        case "step" | "resume":
            node = draft.node(own)
            if draft.notice.envelope.kind == "resume":
                draft.emit("flujo.resumed", step=node.name)
            yield from KINDS[node.kind].answered(draft, own, node)
        case "start" if own.kind == SEQUENCE:
            yield from go_on(draft, own)
        case "start" | "join":
            yield from _join(draft, own)
            if own.status == "failed":
                draft.close = CloseAttempt("failed", "error")


def _join(draft: DecisionBuilder, own: ScopeState) -> Steps:
    """Join a fan-out whose branches are all closed, or an import whose child run has ended."""
    node = draft.container(own)
    if not stops(draft, own, node, node.name):
        yield from KINDS[node.kind].joined(draft, own, node)


def _failed(draft: DecisionBuilder, own: ScopeState, backoff: Backoff) -> Steps:
    envelope, fault = draft.notice.envelope, draft.notice.outcome.fault
    node = draft.place(own) if own.kind == SEQUENCE else None
    if node is not None and fault is not None and human.asks_again(fault):
        draft.close = CloseAttempt("failed", "error")
        yield from human.ask_again(draft, own, node, fault)
        return
    if node is None or fault is None or not may_retry(fault, envelope.tries, node.max_attempts):
        yield from _stop(draft, own, reason="error")
        return
    _try_again(draft, own, node, fault, backoff)


def _try_again(draft: DecisionBuilder, own: ScopeState, node: Node, fault: Fault, backoff: Backoff) -> None:
    envelope = draft.notice.envelope
    asked_s = fault.retry_after_s
    if fault.is_requested:
        wait = min(LONGEST_S, asked_s or 0.0)
    else:
        wait = delay_s(node.backoff or backoff, envelope.tries, envelope.key, asked_s)
    draft.close = CloseAttempt("failed", "error")
    guidance = fault.guidance or envelope.guidance
    units_from = envelope.units_from or envelope.number if fault.keeps_units else None  # else another answer is wanted
    rest = {"delay_s": wait, "guidance": guidance, "units_from": units_from, "pauses": envelope.pauses}
    draft.work(own, node, number=envelope.number + 1, **rest)
    draft.emit("flujo.retry", "warning", step=node.name, reason=fault.feedback, delay_seconds=round(wait, 3))


def _aborted(draft: DecisionBuilder, own: ScopeState, _: Backoff) -> Steps:
    kind, fault = draft.notice.envelope.kind, draft.notice.outcome.fault
    is_pause = fault is not None and fault.code == PausedException.code
    if fault is not None and fault.is_requested:
        _wait(draft, own, fault)
    elif fault is not None and is_pause and (kind == "step" or (kind == "resume" and fault.question)):
        yield from human.ask_for(draft, own, draft.node(own), fault)
    else:
        yield from _stop(draft, own, reason="aborted")


def _wait(draft: DecisionBuilder, own: ScopeState, fault: Fault) -> None:
    """Let an attempt go on later. It is no try, and makes no call again."""
    envelope, node, delay_s = draft.notice.envelope, draft.place(own), min(LONGEST_S, fault.retry_after_s or 0.0)
    draft.close = CloseAttempt("failed", "waiting")
    number, units_from = envelope.number + 1, envelope.units_from or envelope.number
    rest = {"guidance": envelope.guidance, "units_from": units_from, "pauses": envelope.pauses + 1}
    draft.work(own, node, number=number, delay_s=delay_s, **rest)
    draft.emit("flujo.waiting", step=node.name, reason=fault.message, delay_seconds=round(delay_s, 3))


def _cancelled(draft: DecisionBuilder, own: ScopeState, _: Backoff) -> Steps:
    draft.close = CloseAttempt("cancelled", "aborted")
    yield from cancel(draft, own)


def _stop(draft: DecisionBuilder, own: ScopeState, _: Backoff | None = None, *, reason: str) -> Steps:
    fault = draft.notice.outcome.fault
    draft.close = CloseAttempt("failed", reason)
    if own.kind != SEQUENCE:
        yield from give_up(draft, own, fault)
    else:
        yield from fail(draft, own, draft.place(own), fault, reason=reason)


_DECIDERS: dict[str, Callable[[DecisionBuilder, ScopeState, Backoff], Steps]] = {
    "success": _succeeded,
    "failure": _failed,
    "aborted": _aborted,
    "lost": partial(_stop, reason="lost"),
    "cancelled": _cancelled,
    "limit": partial(_stop, reason="limit"),
}
