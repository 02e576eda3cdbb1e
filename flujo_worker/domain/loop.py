"""A loop: its body again and again, until its condition is met or it has gone round often enough.

The decision that closes one iteration opens the next one. Only iterations that succeeded are accumulated; the output mapper is asked exactly
once, by whichever exit the loop ends, and not when it fails before.
"""

from __future__ import annotations

from flujo_client.plan.plan import Node
from flujo_client.serial import Packed
from flujo_worker.domain.conversation import keeps_last_turn, steps_with_turns
from flujo_worker.domain.draft import DecisionBuilder, Kind, ScopeState, Steps, StepsWithResult
from flujo_worker.domain.flow import call_user_code, finish, give_up, open_child, open_container, refusal, within
from flujo_worker.domain.flow import enter as begin
from flujo_worker.domain.values import CallUserCode, UserCodeFailed


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    container = open_container(draft, scope, node)
    try:
        given = container.output
        value = yield from call_user_code(node, "initial_input", given, container.context, otherwise=given)
    except UserCodeFailed as refused:
        yield from give_up(draft, container, refused.fault, iterations=0, exit_reason="initial_input_mapper_error")
        return
    yield from _iterate(draft, container, value)


def closed(draft: DecisionBuilder, container: ScopeState, node: Node, iteration: ScopeState) -> Steps:
    if iteration.status != "succeeded":
        yield from _broken(draft, container, iteration)
        return
    container.merges = True
    during = "pipeline_execution_error"
    try:
        container.context = yield from _turns(node, container.context, iteration.context)
        during = "exit_condition_error"
        reason = yield from _exit_reason(container, node, iteration.output)
        if reason is None:
            during, given = "iteration_input_mapper_error", (iteration.output, container.context, container.output)
            data = {"index": container.cursor}
            value = yield from call_user_code(node, "iteration_input", *given, otherwise=iteration.output, data=data)
    except UserCodeFailed as refused:
        yield from _stop(draft, container, refused, during)
        return
    if reason is None:
        yield from _iterate(draft, container, value)
    else:
        yield from _leave(draft, container, node, iteration.output, reason)


def _iterate(draft: DecisionBuilder, container: ScopeState, value: Packed) -> Steps:
    container.cursor += 1
    suffix = f"#{container.cursor}"
    draft.emit("loop.iteration", step=container.step, iteration=container.cursor)
    yield from begin(draft, open_child(draft, container, suffix, container.step + suffix, container.cursor, value))


def _turns(node: Node, before: Packed | None, after: Packed | None) -> StepsWithResult:
    """Return the context at an iteration's end, with only the retained turns of its conversation."""
    if not keeps_last_turn(node):
        return after
    return (yield CallUserCode("turns", node.path, (before, after), {"steps": sorted(steps_with_turns(node))}))


def _exit_reason(container: ScopeState, node: Node, output: Packed) -> StepsWithResult:
    met = yield from call_user_code(node, "exit_condition", output, container.context, otherwise=False)
    if met:
        return "condition"
    return "max_loops" if container.cursor >= node.rules["max_loops"] else None


def _leave(draft: DecisionBuilder, container: ScopeState, node: Node, last: Packed, reason: str) -> Steps:
    try:
        output = yield from call_user_code(node, "output", last, container.context, container.output, otherwise=last)
    except UserCodeFailed as refused:
        yield from _stop(draft, container, refused, "loop_output_mapper_error")
        return
    if reason == "max_loops" and node.rules["fails_at_max"]:
        feedback = f"loop '{node.path}' reached max_loops ({container.cursor}) without meeting its condition"
        yield from _stop(draft, container, refusal(feedback, type_name="ExecutionError", category="agent"), reason)
        return
    done = container.cursor
    feedback = f"reached max_loops ({done})" if reason == "max_loops" else f"condition met after {done}"
    ended = {"iterations": done, "exit_reason": reason, "feedback": feedback}
    yield from finish(draft, container, output, container.context, **ended)


def _broken(draft: DecisionBuilder, container: ScopeState, iteration: ScopeState) -> Steps:
    """Fail with the step and the iteration that failed, and the original message."""
    fault = iteration.fault
    if fault is not None:
        at = draft.node(iteration).name
        fault = within(fault, f"Loop body failed in iteration {container.cursor} of '{container.step}' at step '{at}'")
    ended = {"iterations": container.cursor - 1, "exit_reason": "body_step_error"}
    yield from give_up(draft, container, fault, context=container.context, **ended)


def _stop(draft: DecisionBuilder, container: ScopeState, refused: UserCodeFailed, reason: str) -> Steps:
    ended = {"iterations": container.cursor, "exit_reason": reason}
    yield from give_up(draft, container, refused.fault, context=container.context, **ended)


KIND = Kind(enter=enter, closed=closed)
