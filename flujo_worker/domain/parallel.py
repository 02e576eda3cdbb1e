"""A parallel step: every branch, each with the step's input."""

from flujo_client.plan.plan import Node
from flujo_worker.domain.draft import DecisionBuilder, Kind, ScopeState, Steps
from flujo_worker.domain.fan_out import fan_out, join


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    yield from fan_out(draft, scope, node, [(f"/{name}", name, scope.output) for name in node.bodies])


KIND = Kind(enter=enter, joined=join)
