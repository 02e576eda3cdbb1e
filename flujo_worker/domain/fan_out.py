"""Branches that run side by side and meet in a join: what parallel steps, routers and parallel maps have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flujo_client.contract.outcome import Fault
from flujo_client.contract.records import CODE
from flujo_client.plan.plan import Node
from flujo_client.serial import Packed
from flujo_worker.domain import flow
from flujo_worker.domain.draft import DecisionBuilder, ScopeState, Steps, StepsWithResult
from flujo_worker.domain.values import CallUserCode, FanOut, ReadScope, ScopeRow, UserCodeFailed


def fan_out(
    draft: DecisionBuilder, scope: ScopeState, node: Node, branches: Sequence[tuple[str, str, Packed]]
) -> Steps:
    """Open a fan-out. `branches`: of each what its address adds, its name and its input, in declared order."""
    container = flow.open_container(draft, scope, node, waiting=bool(branches))
    try:
        container.context = yield from _snapshot(node, scope)
    except UserCodeFailed as refused:
        yield from flow.give_up(draft, container, refused.fault)
        return
    if not branches:
        yield from _settle(draft, container, node, ())
        return
    lanes = min(len(branches), node.rules.get("max_concurrency") or len(branches))
    for place, (suffix, name, value) in enumerate(branches):
        child = flow.open_child(draft, container, suffix, name, place, value)
        child.lanes = {**container.lanes, container.address: place % lanes}
        first = draft.node(child)
        is_step = first.spec.performs
        draft.work(child, first, kind="step" if is_step else "start", held=place >= lanes)
    draft.fan_out = FanOut(container.address, lanes)
    draft.emit("fan_out.opened", step=node.name, branches=len(branches), lanes=lanes)


def join(draft: DecisionBuilder, container: ScopeState, node: Node) -> Steps:
    """Merge in declared order, once all branches are closed, and continue."""
    rows = yield ReadScope(container.address, children=True)
    container.code = tuple(sorted({each for row in rows for each in row.metadata.get(CODE, ())})) or container.code
    yield from _settle(draft, container, node, rows)


def _snapshot(node: Node, scope: ScopeState) -> StepsWithResult:
    """Return what the branches start from: all of the context, or only the requested fields."""
    include = node.rules.get("include")
    if include is None or scope.context is None:
        return scope.context
    return (yield CallUserCode("snapshot", node.path, (scope.context,), {"include": include}))


def _settle(draft: DecisionBuilder, container: ScopeState, node: Node, rows: Sequence[ScopeRow]) -> Steps:
    names = [row.name for row in rows]
    fault = _verdict(node, rows)
    if fault is None:
        try:
            merged, context = yield from _merge(draft, container, node, rows)
            output = yield from flow.call_user_code(node, "output", merged, context, container.output, otherwise=merged)
        except UserCodeFailed as refused:
            fault = refused.fault
    if fault is not None:
        yield from flow.give_up(draft, container, fault, executed_branches=names)
        return
    failures = sum(row.status != "succeeded" for row in rows)
    feedback = f"all {len(rows)} branches succeeded"
    if failures:
        feedback = f"{failures} failure{'s' if failures > 1 else ''} ignored"
    yield from flow.finish(draft, container, output, context, executed_branches=names, feedback=feedback)


def _verdict(node: Node, rows: Sequence[ScopeRow]) -> Fault | None:
    """Return why the fan-out as a whole failed; None: it succeeded."""
    failed = [row for row in rows if row.status == "failed"]
    first = next((row for row in failed if flow.is_final(row.fault)), failed[0] if failed else None)
    none_succeeded = bool(rows) and all(row.status != "succeeded" for row in rows)
    counts = node.rules["on_failure"] == "propagate" or none_succeeded
    if first is not None and first.fault is not None and (counts or flow.is_final(first.fault)):
        return flow.within(first.fault, f"branch '{first.name}' failed")
    if counts and any(row.status != "succeeded" for row in rows):
        return flow.refusal("its branches were cancelled", type_name="ParallelStepError", category="system").fault
    return None


def _merge(draft: DecisionBuilder, container: ScopeState, node: Node, rows: Sequence[ScopeRow]) -> StepsWithResult:
    scope = yield from draft.read_scope(container.parent or "")
    values: list[Packed | None] = [scope.context, container.context]
    for row in rows:
        values += [row.patch, row.output]
    branches: list[dict[str, Any]] = [
        {"name": row.name, "status": row.status, "feedback": row.fault.feedback if row.fault else None} for row in rows
    ]
    return (yield CallUserCode("join", node.path, tuple(values), {"branches": branches}))
