"""A loop: its body again and again, until its condition is met or it has gone round often enough (SYS-15).

Driven by chained tasks: the decision that closes one iteration opens the next one and makes its first message. Only iterations
that succeeded are accumulated (C-13); the output mapper is asked exactly once, by whichever exit the loop ends (M-281), and not
when it fails before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_worker.domain.conversation import keeps_last, speakers
from flujo_worker.domain.draft import Kind
from flujo_worker.domain.flow import ask, finish, give_up, open_box, open_child, refusal, within
from flujo_worker.domain.flow import enter as begin
from flujo_worker.domain.values import CallUserCode, UserCodeFailed

if TYPE_CHECKING:
    from flujo_client.contract.plan import Node
    from flujo_client.serial import Packed
    from flujo_worker.domain.draft import Asked, DecisionBuilder, ScopeState, Steps


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    """Open the loop and its first iteration."""
    box = open_box(draft, scope, node)
    try:
        value = yield from ask(node, "initial_input", box.output, box.context, otherwise=box.output)
    except UserCodeFailed as refused:
        yield from give_up(draft, box, refused.fault, iterations=0, exit_reason="initial_input_mapper_error")
        return
    yield from _iterate(draft, box, value)


def closed(draft: DecisionBuilder, box: ScopeState, node: Node, iteration: ScopeState) -> Steps:
    """An iteration has closed: leave, or go round again."""
    if iteration.status != "succeeded":
        yield from _broken(draft, box, iteration)
        return
    box.merges = True
    try:
        box.context = yield from _turns(node, box.context, iteration.context)
    except UserCodeFailed as refused:
        yield from _stop(draft, box, refused, "pipeline_execution_error")
        return
    try:
        reason = yield from _exit_reason(box, node, iteration.output)
    except UserCodeFailed as refused:
        yield from _stop(draft, box, refused, "exit_condition_error")
        return
    if reason is not None:
        yield from _leave(draft, box, node, iteration.output, reason)
        return
    asked = {"index": box.cursor}
    try:
        value = yield from ask(
            node, "iteration_input", iteration.output, box.context, box.output, otherwise=iteration.output, data=asked
        )
    except UserCodeFailed as refused:
        yield from _stop(draft, box, refused, "iteration_input_mapper_error")
        return
    yield from _iterate(draft, box, value)


def _iterate(draft: DecisionBuilder, box: ScopeState, value: Packed) -> Steps:
    box.cursor += 1
    suffix = f"#{box.cursor}"
    draft.tell("loop.iteration", step=box.step, iteration=box.cursor)
    yield from begin(draft, open_child(draft, box, suffix, box.step + suffix, box.cursor, value))


def _turns(node: Node, before: Packed | None, after: Packed | None) -> Asked:
    """The context at an iteration's end; of its conversation's turns those stay that count."""
    if not keeps_last(node):
        return after
    return (yield CallUserCode("turns", node.path, (before, after), {"steps": sorted(speakers(node))}))


def _exit_reason(box: ScopeState, node: Node, output: Packed) -> Asked:
    met = yield from ask(node, "exit_condition", output, box.context, otherwise=False)
    if met:
        return "condition"
    return "max_loops" if box.cursor >= node.rules["max_loops"] else None


def _leave(draft: DecisionBuilder, box: ScopeState, node: Node, last: Packed, reason: str) -> Steps:
    try:
        output = yield from ask(node, "output", last, box.context, box.output, otherwise=last)
    except UserCodeFailed as refused:
        yield from _stop(draft, box, refused, "loop_output_mapper_error")
        return
    if reason == "max_loops" and node.rules["fails_at_max"]:
        said = f"loop '{node.path}' reached max_loops ({box.cursor}) without meeting its condition"
        yield from _stop(draft, box, refusal(said, type_name="ExecutionError", category="agent"), reason)
        return
    said = f"reached max_loops ({box.cursor})" if reason == "max_loops" else f"condition met after {box.cursor}"
    yield from finish(draft, box, output, box.context, iterations=box.cursor, exit_reason=reason, feedback=said)


def _broken(draft: DecisionBuilder, box: ScopeState, iteration: ScopeState) -> Steps:
    """Say which step in which iteration failed, with its own words (M-289)."""
    fault = iteration.fault
    if fault is not None:
        step = draft.node(iteration).name
        fault = within(fault, f"Loop body failed in iteration {box.cursor} of '{box.step}' at step '{step}'")
    done = box.cursor - 1
    yield from give_up(draft, box, fault, context=box.context, iterations=done, exit_reason="body_step_error")


def _stop(draft: DecisionBuilder, box: ScopeState, refused: UserCodeFailed, reason: str) -> Steps:
    yield from give_up(draft, box, refused.fault, context=box.context, iterations=box.cursor, exit_reason=reason)


KIND = Kind(enter=enter, closed=closed)
