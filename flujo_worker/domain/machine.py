"""A state machine: pipelines as states, and transitions between them (SYS-16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_worker.domain.draft import Kind
from flujo_worker.domain.flow import enter as begin
from flujo_worker.domain.flow import finish, give_up, is_final, open_box, open_child, refusal, within
from flujo_worker.domain.values import Ask, Refused

if TYPE_CHECKING:
    from flujo_client.pipeline.plan import Node
    from flujo_client.serial import Packed
    from flujo_worker.domain.draft import Draft, Scope, Steps


def enter(draft: Draft, scope: Scope, node: Node) -> Steps:
    """Begin in the start state."""
    yield from _go_on(draft, open_box(draft, scope, node), node, None, "success", scope.output)


def closed(draft: Draft, box: Scope, node: Node, state: Scope) -> Steps:
    """A state's pipeline has ended: take the transition that fits."""
    if state.status == "succeeded":
        box.context, box.merges = state.context, True
        if state.name in node.rules["ends"]:
            yield from finish(draft, box, state.output, box.context, iterations=box.cursor, final_state=state.name)
        else:
            yield from _go_on(draft, box, node, state, "success", state.output)
        return
    if is_final(state.fault):
        yield from give_up(draft, box, state.fault, context=box.context)
    else:
        yield from _go_on(draft, box, node, state, "failure", state.output)


def _go_on(draft: Draft, box: Scope, node: Node, state: Scope | None, event: str, value: Packed) -> Steps:
    before = None if state is None else state.name
    try:
        following, context = yield Ask("next_state", node.path, (value, box.context), {"from": before, "event": event})
        if following in node.bodies and box.cursor >= node.rules["max_visits"]:
            said = f"state machine '{node.path}' visited {box.cursor} states without coming to an end"
            raise refusal(said, type_name="ExecutionError", category="agent")
    except Refused as refused:
        yield from give_up(draft, box, refused.fault, context=box.context, iterations=box.cursor)
        return
    if following is None:
        yield from _stuck(draft, box, node, state)
        return
    box.context, box.merges = context, True
    if following in node.rules["ends"] and following not in node.bodies:
        yield from finish(draft, box, value, box.context, iterations=box.cursor, final_state=following)
        return
    box.cursor += 1
    child = open_child(draft, box, f"#{box.cursor}/{following}", following, box.cursor, value)
    yield from begin(draft, child)


def _stuck(draft: Draft, box: Scope, node: Node, state: Scope | None) -> Steps:
    name = state.name if state is not None else ""
    if state is not None and state.fault is not None:
        fault = within(state.fault, f"state '{name}' failed")
    else:
        said = f"state machine '{node.path}' has no transition from state '{name}', and that is no end state"
        fault = refusal(said, type_name="ExecutionError", category="agent").fault
    yield from give_up(draft, box, fault, context=box.context, iterations=box.cursor)


KIND = Kind(enter=enter, closed=closed)
