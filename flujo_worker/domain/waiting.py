"""Waiting for a person: the work row of a question, and the places where a decision may stop for one.

User code that is called during a decision may raise a pause. The decision then ends at the last sequence or fan-out that it had reached,
with a question there, and continues from that place with the answer. Later questions to user code are asked again.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from flujo_client.address import branch_of
from flujo_client.contract.envelope import AttemptKind
from flujo_client.contract.outcome import Fault
from flujo_client.plan.plan import Node, Plan
from flujo_client.serial import Packed
from flujo_client.transport.chords import NO_LANE
from flujo_worker.domain.draft import DecisionBuilder, ScopeState, Steps
from flujo_worker.domain.values import CallUserCode, ReadScope, SlotReleased, UserCodeFailed, UserCodePaused

KEPT, WITHOUT_PLACE = "QUESTION_NOT_PROPAGATED", "QUESTION_WITHOUT_PLACE"
FIRST_AGAIN = 2
"""The number of the first work that continues from a place with an answer; what begins there first has 1."""


def stops(draft: DecisionBuilder, scope: ScopeState, node: Node, step: str) -> bool:
    """Record that a decision can wait here, at a place of that name; make the question's row if it is to."""
    draft.stop, draft.stops_at = draft.stop + 1, scope.address
    paused = draft.pauses.get(draft.stop)
    if paused is None:
        return False
    question = {"message": paused.message, "schema": None, "expires_s": None, "role": paused.role, "path": paused.path}
    wait(draft, scope, node, question, kind="start", step=step, number=next_number(draft, scope, step))
    return True


def next_number(draft: DecisionBuilder, scope: ScopeState, step: str) -> int:
    """Return the number of the next work that begins at a place again, after this decision has stopped there."""
    envelope = draft.notice.envelope
    is_again = (envelope.address, envelope.step, envelope.kind) == (scope.address, step, "start")
    return envelope.number + 1 if is_again else FIRST_AGAIN


def wait(
    draft: DecisionBuilder,
    scope: ScopeState,
    node: Node,
    question: Mapping[str, Any],
    *,
    number: int,
    context: Packed | None = None,
    kind: AttemptKind = "resume",
    **place: Any,
) -> None:
    """Make the row of a question, which gives its lane to a sibling meanwhile. A `context` that shows the question is merged."""
    if context is not None:
        scope.context, scope.merges = context, True
    draft.work(scope, node, kind=kind, number=number, question=question, delay_s=question["expires_s"] or 0.0, **place)
    draft.lane_left = lane_left(draft, scope)
    draft.emit("flujo.paused", step=node.name, message=question["message"])


def carried_out(
    draft: DecisionBuilder, steps: Steps, known: list[tuple[int, Any]]
) -> Generator[CallUserCode | ReadScope, Any, UserCodePaused | None]:
    """Carry out a decision's steps; return the pause that user code raised, if any, so that the decision stops before it.

    `known`: what was answered before, each with the stop that it came after; what is answered now is added.
    """
    answer, left = None, iter(list(known))
    while True:
        try:
            request = steps.throw(answer) if isinstance(answer, UserCodeFailed) else steps.send(answer)
        except StopIteration:
            return None
        _, answer = next(left, (0, _UNKNOWN))
        if answer is not _UNKNOWN:
            continue
        try:
            answer = yield request
        except UserCodeFailed as refused:
            answer = refused
        except UserCodePaused as paused:
            kept = kept_from_people(draft.plan, draft.stops_at, f"{paused.role} of '{paused.path}'", paused.message)
            if draft.stop and kept is None:
                known[:] = [each for each in known if each[0] < draft.stop]
                return paused
            answer = UserCodeFailed(kept or _without_place(paused))
        known.append((draft.stop, answer))


def kept_from_people(plan: Plan, address: str, asks: str, message: str) -> Fault | None:
    """Return the failure of a question that an enclosing import forbids (`propagate_hitl=False`), a child run's import too."""
    above: str | None = address
    while above is not None:
        container, _, above = plan.locate(above)
        if container is not None and "asks_nobody" in container.rules:
            problem = f"{asks} asks a person, which import '{container.name}' forbids (propagate_hitl=False): {message}"
            return Fault("human", "HumanInputError", problem, problem, module="flujo_client.errors", code=KEPT)
    return None


def _without_place(paused: UserCodePaused) -> Fault:
    """Return the failure of a question where a run cannot wait: while a failure propagates, or while another answer is handled."""
    problem = (
        f"{paused.role} of '{paused.path}' asks a person where a run cannot wait, after a failure or while it handles another answer; "
        f"ask in a step instead: {paused.message}"
    )
    return Fault("human", "HumanInputError", problem, problem, module="flujo_client.errors", code=WITHOUT_PLACE)


def lane_left(draft: DecisionBuilder, scope: ScopeState) -> SlotReleased | None:
    """Release the lane of the innermost fan-out, if its lanes are counted: a branch that waits for a person must not delay its siblings."""
    fan_out = max(scope.lanes, key=len, default=None)
    if fan_out is None or scope.lanes[fan_out] == NO_LANE:
        return None
    container = draft.plan.locate(fan_out).container
    if container is None or container.rules.get("max_concurrency") is None:
        return None
    branch = branch_of(fan_out, scope.address)
    addresses = [scope.address]
    while addresses[-1] != branch:
        addresses.append(draft.plan.locate(addresses[-1]).above or "")
    return SlotReleased(fan_out, scope.lanes[fan_out], tuple(addresses))


_UNKNOWN = object()
