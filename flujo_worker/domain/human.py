"""Human in the loop: a question to a person is a paused work row, and nothing else waits (ADR 23).

A step of any kind may ask too, by raising a pause. A question is asked again if it expires and is to be escalated, once, and if its answer
does not fit. Anywhere inside an import that does not propagate questions it fails its step instead. A step that waits for an event asks too, but
no person: an event answers it.
"""

from __future__ import annotations

from typing import Any

from flujo_client.contract.outcome import Fault
from flujo_client.plan.plan import Node
from flujo_worker.domain.draft import DecisionBuilder, Kind, ScopeState, Steps
from flujo_worker.domain.flow import fail, succeed
from flujo_worker.domain.values import CallUserCode, CloseAttempt, UserCodeFailed
from flujo_worker.domain.waiting import kept_from_people, wait

ESCALATES, REFUSED = "QUESTION_ESCALATED", "ANSWER_REFUSED"
"""Codes of the faults after which the question is asked again."""


def answered(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    outcome, number = draft.notice.outcome, draft.notice.envelope.number
    draft.emit("step.succeeded", step=node.name, attempts=number)
    output, container = outcome.output or scope.output, draft.plan.locate(scope.address).container
    if container is not None and (
        yield from draft.kinds[container.kind].on_answer(draft, scope, container, output, outcome.context)
    ):
        return
    yield from succeed(draft, scope, output, outcome.context)


def asks_again(fault: Fault) -> bool:
    return fault.category == "human" and fault.code in (ESCALATES, REFUSED)


def ask_again(draft: DecisionBuilder, scope: ScopeState, node: Node, fault: Fault) -> Steps:
    """Ask again: another person, or with the reason why the answer was refused."""
    number = draft.notice.envelope.number + 1
    if fault.code == ESCALATES:
        yield from enter(draft, scope, node, number=number, escalated=True, actor=node.rules["escalate_to"])
    else:
        left = {"expires_s": fault.details["left_s"]} if "left_s" in fault.details else {}
        yield from enter(draft, scope, node, number=number, refused=fault.message, **left)


def ask_for(draft: DecisionBuilder, scope: ScopeState, node: Node, fault: Fault) -> Steps:
    """Ask for a step that has raised a pause: its message is the question, and the answer is the step's output, or its tool's."""
    draft.close = CloseAttempt("failed", "paused")
    try:
        asked, values = {"message": fault.message}, (scope.output, scope.context)
        message, context = yield CallUserCode("pause", node.path, values, asked)
        _let_through(draft, scope, node, message)
    except UserCodeFailed as refused:
        draft.close = CloseAttempt("failed", "error")
        yield from fail(draft, scope, node, refused.fault)
        return
    question = {"message": message, "schema": None, "expires_s": None, **(fault.question or {})}
    envelope = draft.notice.envelope
    units_from, pauses, number = envelope.units_from or envelope.number, envelope.pauses + 1, envelope.number + 1
    wait(draft, scope, node, question, context=context, number=number, units_from=units_from, pauses=pauses)


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node, *, number: int = 1, **fields: Any) -> Steps:
    """Ask, the first time or again."""
    try:
        message, schema, context = yield CallUserCode("question", node.path, (scope.output, scope.context))
        if "event" in node.rules:
            fields["event"] = node.rules["event"]
        else:
            _let_through(draft, scope, node, message)
    except UserCodeFailed as refused:
        draft.work(scope, node, kind="resume", number=number, fault=refused.fault)
        yield from fail(draft, scope, node, refused.fault)
        return
    question = {"message": message, "schema": schema, "expires_s": node.rules["expires_s"], **fields}
    wait(draft, scope, node, question, context=context, number=number)


def _let_through(draft: DecisionBuilder, scope: ScopeState, node: Node, message: str) -> None:
    fault = kept_from_people(draft.plan, scope.address, f"step '{node.name}'", message)
    if fault is not None:
        raise UserCodeFailed(fault)


KIND = Kind(enter=enter, answered=answered)
