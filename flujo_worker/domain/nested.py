"""A pipeline as a step of another one: inside its run, or, if the import asks for it, as a separate run."""

from __future__ import annotations

from flujo_client.plan.plan import Node
from flujo_client.serial import Packed
from flujo_worker.domain import child_run
from flujo_worker.domain.draft import DecisionBuilder, Kind, ScopeState, Steps
from flujo_worker.domain.flow import enter as begin
from flujo_worker.domain.flow import finish, give_up, is_final, open_child, open_container, within
from flujo_worker.domain.values import CallUserCode, ChildRunRow, UserCodeFailed


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    own_run = "own_run" in node.rules
    container = open_container(draft, scope, node, waiting=own_run)
    data = {"run_id": child_run.id_of(draft, container)} if own_run else {}
    try:
        container.context = yield CallUserCode("import_context", node.path, (scope.context, scope.output), data)
    except UserCodeFailed as refused:
        yield from give_up(draft, container, refused.fault)
        return
    if own_run:
        child_run.begin(draft, container, node)
    else:
        yield from begin(draft, open_child(draft, container, child_run.BODY, node.name, 0, scope.output))


def closed(draft: DecisionBuilder, container: ScopeState, node: Node, body: ScopeState | ChildRunRow) -> Steps:
    """Pass up what the import asks for; a failure may be skipped, control flow never."""
    scope = yield from draft.read_scope(container.parent or "")
    on_failure = node.rules["on_failure"]
    if body.status != "succeeded":
        if on_failure == "abort" or is_final(body.fault):
            fault = body.fault and within(body.fault, f"import '{node.name}' failed")
            yield from give_up(draft, container, fault)
            return
        feedback = body.fault.feedback if body.fault else None
        output = _instead(container, node, feedback)
        yield from finish(draft, container, output, scope.context, on_failure=on_failure, feedback=feedback)
        return
    try:
        context = yield CallUserCode("export_context", node.path, (scope.context, body.context))
        output = body.output
        if node.rules.get("keeps_input"):
            output = yield CallUserCode("pair", node.path, (container.output, body.output))
    except UserCodeFailed as refused:
        yield from give_up(draft, container, refused.fault)
        return
    yield from finish(draft, container, output, context)


def _instead(container: ScopeState, node: Node, feedback: str | None) -> Packed:
    match node.rules["on_failure"]:
        case "skip":
            return container.output
        case "tell":
            return Packed.of({"error": feedback})
        case _:
            return Packed.of(node.rules["default"])


def joined(draft: DecisionBuilder, container: ScopeState, node: Node) -> Steps:
    child = yield from child_run.ended(draft, container)
    yield from closed(draft, container, node, child)


KIND = Kind(enter=enter, closed=closed, joined=joined)
