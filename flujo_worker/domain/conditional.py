"""A conditional: one of several paths, chosen by a condition."""

from __future__ import annotations

from flujo_client.plan.plan import Node
from flujo_worker.domain.draft import DecisionBuilder, Kind, ScopeState, Steps, StepsWithResult
from flujo_worker.domain.flow import call_user_code, finish, give_up, open_child, open_container, refusal, within
from flujo_worker.domain.flow import enter as begin
from flujo_worker.domain.values import UserCodeFailed


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    container = open_container(draft, scope, node)
    try:
        answer, key = yield from _choose(node, scope)
        container.metadata.update(executed_branch_key=answer, resolved_branch_key=key)
        value = yield from call_user_code(node, "branch_input", scope.output, scope.context, otherwise=scope.output)
    except UserCodeFailed as refused:
        yield from give_up(draft, container, refused.fault)
        return
    yield from begin(draft, open_child(draft, container, f"/{key}", key, 0, value))


def closed(draft: DecisionBuilder, container: ScopeState, node: Node, path: ScopeState) -> Steps:
    if path.status != "succeeded":
        fault = path.fault and within(path.fault, f"branch '{path.name}' failed")
        yield from give_up(draft, container, fault)
        return
    key = container.metadata["executed_branch_key"]
    try:
        output = yield from call_user_code(
            node, "branch_output", path.output, path.context, container.output, otherwise=path.output, data={"key": key}
        )
    except UserCodeFailed as refused:
        yield from give_up(draft, container, refused.fault)
        return
    yield from finish(draft, container, output, path.context)


def _choose(node: Node, scope: ScopeState) -> StepsWithResult:
    answer, key = yield from call_user_code(node, "condition", scope.output, scope.context)
    if key is None and node.rules["default"]:
        key = "default"
    if key is None:
        keys = ", ".join(sorted(node.bodies)) or "none"
        why = f"the condition of '{node.path}' answered {answer!r:.80}; its branches are {keys}, and it has no default"
        step = {"step": node.name}
        raise refusal(why, type_name="ExecutionError", code="NO_BRANCH", category="agent", details=step)
    return answer, key


KIND = Kind(enter=enter, closed=closed)
