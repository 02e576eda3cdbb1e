"""A state machine: pipelines as states, and transitions between them."""

from __future__ import annotations

from flujo_client.pipeline.machine import ANY
from flujo_client.plan.plan import Node
from flujo_client.serial import Packed
from flujo_worker.domain.draft import DecisionBuilder, Kind, ScopeState, Steps, StepsWithResult
from flujo_worker.domain.flow import enter as begin
from flujo_worker.domain.flow import finish, give_up, is_final, open_child, open_container, refusal, within
from flujo_worker.domain.values import CallUserCode, UserCodeFailed

PAUSE = "pause"


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    yield from _go_on(draft, open_container(draft, scope, node), node, None, "success", scope.output)


def closed(draft: DecisionBuilder, container: ScopeState, node: Node, state: ScopeState) -> Steps:
    if state.status == "succeeded":
        container.context, container.merges = state.context, True
        if state.name in node.rules["ends"]:
            ended = {"iterations": container.cursor, "final_state": state.name}
            yield from finish(draft, container, state.output, container.context, **ended)
        else:
            yield from _go_on(draft, container, node, state, "success", state.output)
        return
    if is_final(state.fault):
        yield from give_up(draft, container, state.fault, context=container.context)
    else:
        yield from _go_on(draft, container, node, state, "failure", state.output)


def on_answer(
    draft: DecisionBuilder, state: ScopeState, node: Node, answer: Packed, context: Packed | None
) -> StepsWithResult:
    """Follow an answer to a question in a state's own pipeline: a transition `on: pause` to another state leads on from there, with the answer."""
    if not any(each["on"] == PAUSE and each["from"] in (state.name, ANY) for each in node.rules["transitions"]):
        return False
    context, refused = context or state.context, None
    try:
        following, moved = yield _next_state(node, state, PAUSE, answer, context)
    except UserCodeFailed as raised:
        refused = raised
    else:
        if following in (None, state.name):
            return False
    container = yield from draft.read_scope(state.parent or "")
    state.output, state.context, state.merges = answer, context, True
    state.cursor += 1
    state.close("succeeded")
    container.context, container.merges = context, True
    if refused is not None:
        yield from give_up(draft, container, refused.fault, context=context, iterations=container.cursor)
    else:
        yield from _move(draft, container, node, following, moved, answer)
    return True


def _go_on(
    draft: DecisionBuilder, container: ScopeState, node: Node, state: ScopeState | None, event: str, value: Packed
) -> Steps:
    try:
        following, context = yield _next_state(node, state, event, value, container.context)
    except UserCodeFailed as refused:
        yield from give_up(draft, container, refused.fault, context=container.context, iterations=container.cursor)
        return
    if following is None:
        yield from _stuck(draft, container, node, state)
    else:
        yield from _move(draft, container, node, following, context, value)


def _next_state(node: Node, state: ScopeState | None, on: str, value: Packed, context: Packed | None) -> CallUserCode:
    data = {"from": None if state is None else state.name, "event": on}
    return CallUserCode("next_state", node.path, (value, context), data)


def _move(
    draft: DecisionBuilder, container: ScopeState, node: Node, following: str, context: Packed | None, value: Packed
) -> Steps:
    """Move to a state; at one that runs nothing, the machine ends."""
    if following in node.bodies and container.cursor >= node.rules["max_visits"]:
        message = f"state machine '{node.path}' visited {container.cursor} states without reaching an end state"
        fault = refusal(message, type_name="ExecutionError", category="agent").fault
        yield from give_up(draft, container, fault, context=container.context, iterations=container.cursor)
        return
    container.context, container.merges = context, True
    if following in node.rules["ends"] and following not in node.bodies:
        ended = {"iterations": container.cursor, "final_state": following}
        yield from finish(draft, container, value, container.context, **ended)
        return
    container.cursor += 1
    child = open_child(draft, container, f"#{container.cursor}/{following}", following, container.cursor, value)
    yield from begin(draft, child)


def _stuck(draft: DecisionBuilder, container: ScopeState, node: Node, state: ScopeState | None) -> Steps:
    name = state.name if state is not None else ""
    if state is not None and state.fault is not None:
        fault = within(state.fault, f"state '{name}' failed")
    else:
        message = f"state machine '{node.path}' has no transition from state '{name}', which is not an end state"
        fault = refusal(message, type_name="ExecutionError", category="agent").fault
    yield from give_up(draft, container, fault, context=container.context, iterations=container.cursor)


KIND = Kind(enter=enter, closed=closed, on_answer=on_answer)
