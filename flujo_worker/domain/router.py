"""A dynamic router: an agent, performed like a step, says which branches run."""

from flujo_client.plan.plan import Node
from flujo_worker.domain import step
from flujo_worker.domain.draft import DecisionBuilder, Kind, ScopeState, Steps
from flujo_worker.domain.fan_out import fan_out, join
from flujo_worker.domain.flow import give_up, open_container
from flujo_worker.domain.values import CallUserCode, UserCodeFailed


def answered(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    """Open the branches that the agent named, in declared order. They see the agent's changes of the context."""
    outcome = draft.notice.outcome
    try:
        names = yield CallUserCode("selection", node.path, (outcome.output,), {"branches": list(node.bodies)})
    except UserCodeFailed as refused:
        yield from give_up(draft, open_container(draft, scope, node), refused.fault)
        return
    scope.context, scope.merges = outcome.context or scope.context, True
    draft.emit("router.selected", step=node.name, branches=names)
    yield from fan_out(draft, scope, node, [(f"/{name}", name, scope.output) for name in names])


KIND = Kind(enter=step.enter, answered=answered, joined=join)
