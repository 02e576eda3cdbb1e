"""A sleep is the work row of a step that is due when it is over, and nothing else waits (ADR 59)."""

from flujo_client.plan.plan import Node
from flujo_worker.domain.draft import DecisionBuilder, Kind, ScopeState, Steps
from flujo_worker.domain.flow import fail
from flujo_worker.domain.step import answered
from flujo_worker.domain.values import SHORT_DELAY_S, SLEEP, CallUserCode, UserCodeFailed
from flujo_worker.domain.waiting import lane_left


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    """Make the row. A long sleep gives its lane to a sibling meanwhile."""
    try:
        name, value = yield CallUserCode("sleep", node.path, (scope.output, scope.context))
    except UserCodeFailed as refused:
        draft.work(scope, node, fault=refused.fault)
        yield from fail(draft, scope, node, refused.fault)
        return
    draft.work(scope, node, waits_for=SLEEP, **{"delay_s" if name == "seconds" else name: value})
    if name == "until" or value > SHORT_DELAY_S:
        draft.lane_left = lane_left(draft, scope)
    draft.emit("flujo.sleeping", step=node.name, **{name: value})


KIND = Kind(enter=enter, answered=answered)
