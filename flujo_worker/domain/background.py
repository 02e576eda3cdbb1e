"""A step in the background: a separate run begins in the commit that reaches it, and the pipeline continues (ADR 19)."""

from flujo_client.plan.plan import Node
from flujo_worker.domain import child_run
from flujo_worker.domain.draft import DecisionBuilder, Kind, ScopeState, Steps
from flujo_worker.domain.flow import give_up, open_container, succeed
from flujo_worker.domain.values import CallUserCode, UserCodeFailed


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    """Launch it, and continue with what it was given: its output is not there yet."""
    container = open_container(draft, scope, node)
    ids = {"task_id": child_run.id_of(draft, container), "parent_run_id": draft.notice.envelope.ticket.run}
    if scope.context is not None:
        try:
            container.context = yield CallUserCode("task_context", node.path, (scope.context,), ids)
        except UserCodeFailed as refused:
            yield from give_up(draft, container, refused.fault)
            return
    child_run.launch(draft, container, node)
    container.close("succeeded")
    yield from succeed(draft, scope, scope.output, None)


KIND = Kind(enter=enter)
