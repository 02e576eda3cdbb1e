"""Rules for every node: how a sequence continues, and how a scope that closes notifies its parent.

A close climbs within one decision up to the nearest fan-out and stops there: a branch never writes its parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flujo_client.address import END
from flujo_client.contract.outcome import Fault
from flujo_client.contract.records import SEQUENCE
from flujo_client.plan.plan import Node
from flujo_client.serial import Packed
from flujo_client.transport.chords import NO_LANE
from flujo_worker.domain.conversation import is_revisited
from flujo_worker.domain.draft import MAX_HOPS, DecisionBuilder, ScopeState, Steps, StepsWithResult
from flujo_worker.domain.values import BranchClosed, CallUserCode, EndRun, UserCodeFailed
from flujo_worker.domain.waiting import stops


def enter(draft: DecisionBuilder, scope: ScopeState) -> Steps:
    """Begin the node a sequence is at; put a message in between when one decision has gone far enough, or has begun its one run."""
    node = draft.node(scope)
    draft.begin(scope)
    if stops(draft, scope, node, node.name):
        return
    draft.hops += 1
    if draft.hops > MAX_HOPS or (draft.child_run is not None and not node.spec.performs):
        draft.work(scope, node, kind="start")
        return
    yield from draft.kinds[node.kind].enter(draft, scope, node)


def succeed(draft: DecisionBuilder, scope: ScopeState, output: Packed, context: Packed | None) -> Steps:
    """Continue after a node's output with the next node, or close the sequence."""
    scope.output, scope.context, scope.merges = output, context or scope.context, True
    scope.cursor += 1
    yield from go_on(draft, scope)


def go_on(draft: DecisionBuilder, scope: ScopeState) -> Steps:
    """Continue a sequence from its node, or from its end."""
    is_at_end = scope.cursor >= len(draft.plan.locate(scope.address).nodes or ())
    yield from (close if is_at_end else enter)(draft, scope)


def fail(draft: DecisionBuilder, scope: ScopeState, node: Node, fault: Fault | None, *, reason: str = "error") -> Steps:
    """Stop the sequence of a node that has failed permanently."""
    data = {"step": node.name, "reason": reason, "feedback": fault.feedback if fault else None}
    draft.emit("step.failed", "error", **data)
    scope.close("failed", fault)
    if scope.parent is None:
        draft.end = EndRun("failed", f"step '{node.name}' failed", fault)
        draft.emit("run.failed", "error", **data)
        return
    yield from _closed(draft, scope)


def close(draft: DecisionBuilder, scope: ScopeState) -> Steps:
    if scope.parent is None:
        scope.close("succeeded")
        draft.end = EndRun("succeeded", output=scope.output)
        draft.emit("run.succeeded")
        return
    container = draft.container(scope)
    if stops(draft, scope, container, container.name + END):
        return
    try:
        scope.patch = yield from _patch(draft, scope)
    except UserCodeFailed as refused:
        scope.close("failed", refused.fault)
    else:
        scope.close("succeeded")
    yield from _closed(draft, scope)


def _patch(draft: DecisionBuilder, scope: ScopeState) -> StepsWithResult:
    """Return what a branch changed in its context; its fan-out's scope is only read."""
    if scope.context is None or scope.parent is None or not is_branch(draft, scope):
        return None
    container = yield from draft.read_scope(scope.parent)
    draft.scopes.pop(container.address)
    if same(container.context, scope.context):
        return None
    return (yield CallUserCode("patch", draft.container(scope).path, (container.context, scope.context)))


def cancel(draft: DecisionBuilder, scope: ScopeState) -> Steps:
    """Close a scope and those above it up to its branch, because the fan-out was aborted. No user code is asked."""
    while True:
        scope.close("cancelled")
        if scope.parent is None:
            return
        if scope.kind == SEQUENCE and is_branch(draft, scope):
            draft.branch_end = _branch_end(scope, aborts=False, takes=False)
            return
        scope = yield from draft.read_scope(scope.parent)
        if scope.kind != SEQUENCE:
            yield from close_the_rest(draft, scope)


def close_the_rest(draft: DecisionBuilder, container: ScopeState) -> Steps:
    """Close what a container has opened beforehand and will not begin any more."""
    for child in (yield from draft.children(container)):
        if child.status == "open":
            waiting = yield from draft.read_scope(child.address)
            waiting.close("cancelled")


def finish(
    draft: DecisionBuilder, container: ScopeState, output: Packed, context: Packed | None, **metadata: Any
) -> Steps:
    """Close a container that has succeeded: hand its output and context to its sequence, which continues."""
    node = draft.container(container)
    if context is not None:
        try:
            context = yield CallUserCode("keep_output", node.path, (context, output), {"name": node.name})
        except UserCodeFailed as refused:
            yield from give_up(draft, container, refused.fault, **metadata)
            return
    scope = yield from _leave(draft, container, metadata)
    container.output, container.context = output, context or scope.context
    container.close("succeeded")
    draft.emit("step.succeeded", step=node.name, kind=node.kind)
    yield from succeed(draft, scope, output, context)


def give_up(
    draft: DecisionBuilder,
    container: ScopeState,
    fault: Fault | None,
    *,
    context: Packed | None = None,
    **metadata: Any,
) -> Steps:
    """Close a container that has failed. `context` is what its finished children handed to it; the rest was never merged."""
    scope = yield from _leave(draft, container, metadata)
    container.close("failed", fault)
    if context is not None and not same(scope.context, context):
        scope.context, scope.merges = context, True
    yield from fail(draft, scope, draft.container(container), fault)


def _leave(draft: DecisionBuilder, container: ScopeState, metadata: Mapping[str, Any]) -> StepsWithResult:
    container.metadata = {**container.metadata, **{key: value for key, value in metadata.items() if value is not None}}
    container.merges = True
    scope = yield from draft.read_scope(container.parent or "")
    if container.code and is_revisited(draft.plan, draft.container(container).path):
        scope.code = container.code
    return scope


def _closed(draft: DecisionBuilder, scope: ScopeState) -> Steps:
    """Notify the parent: the join, once all branches are closed, or the container, at once."""
    node = draft.container(scope)
    if node.is_fan_out:
        failed = scope.status == "failed"
        aborts = failed and (node.rules["on_failure"] == "propagate" or is_final(scope.fault))
        draft.branch_end = _branch_end(scope, aborts=aborts, takes=node.rules.get("max_concurrency") is not None)
        return
    container = yield from draft.read_scope(scope.parent or "")
    container.code = scope.code or container.code
    yield from draft.kinds[node.kind].closed(draft, container, node, scope)


def is_branch(draft: DecisionBuilder, scope: ScopeState) -> bool:
    container = draft.plan.locate(scope.address).container
    return container is not None and scope.kind == SEQUENCE and container.is_fan_out


def is_final(fault: Fault | None) -> bool:
    """Return whether a failure passes through every container untouched, as control flow does."""
    return fault is not None and fault.stops_run


def same(one: Packed | None, other: Packed | None) -> bool:
    """Return whether two contexts are equal; both may be None."""
    if one is None or other is None:
        return one is other
    return one is other or one.digest == other.digest


def open_container(draft: DecisionBuilder, scope: ScopeState, node: Node, *, waiting: bool = False) -> ScopeState:
    """Open the scope of a container that a sequence is at."""
    address = f"{scope.address}/{node.name}" if scope.address else node.name
    return draft.open(
        ScopeState(
            address=address,
            parent=scope.address,
            kind=node.kind,
            step=node.name,
            name=node.name,
            place=scope.cursor,
            output=scope.output,
            context=scope.context,
            lanes=scope.lanes,
            waiting=waiting,
            code=scope.code,
        )
    )


def open_child(
    draft: DecisionBuilder, container: ScopeState, suffix: str, name: str, place: int, value: Packed
) -> ScopeState:
    """Open a sequence under a container, with the container's context; see `child_of`."""
    return draft.open(child_of(container, suffix, name, place, value))


def child_of(container: ScopeState, suffix: str, name: str, place: int, value: Packed) -> ScopeState:
    """Make a sequence under a container. `suffix` is what its address adds to the container's, such as `#3` or `/legal`.

    `name` is what it is called in results, `place` its place among its siblings, and `value` its input.
    """
    return ScopeState(
        address=container.address + suffix,
        parent=container.address,
        kind=SEQUENCE,
        step=container.step,
        name=name,
        place=place,
        output=value,
        context=container.context,
        lanes=container.lanes,
        code=container.code,
    )


def call_user_code(
    node: Node, role: str, *values: Packed | None, otherwise: Any = None, data: Mapping[str, Any] | None = None
) -> StepsWithResult:
    """Ask user code in a role, if the node has any for it; else the answer is `otherwise`."""
    if role not in node.rules.get("functions", ()):
        return otherwise
    return (yield CallUserCode(role, node.path, values, dict(data or {})))


def refusal(
    message: str,
    *,
    type_name: str = "PipelineError",
    code: str = "",
    category: str = "configuration",
    details: Mapping[str, Any] | None = None,
) -> UserCodeFailed:
    """Make the refusal that decide itself gives, where no user code raised."""
    module = "flujo_client.errors"
    return UserCodeFailed(Fault(category, type_name, message, message, module, code, details=details or {}))


def within(fault: Fault, prefix: str) -> Fault:
    """Prefix a failure with where it happened; control flow passes unchanged."""
    return fault if is_final(fault) else replace(fault, feedback=f"{prefix}: {fault.feedback}")


def _branch_end(scope: ScopeState, *, aborts: bool, takes: bool) -> BranchClosed:
    fan_out = scope.parent or ""
    lane = scope.lane_in(fan_out)
    return BranchClosed(scope.address, fan_out, lane, aborts, takes and lane != NO_LANE)
