"""An optional step: its body, whose failure is replaced by the step's input."""

from __future__ import annotations

from flujo_client.plan.plan import Node
from flujo_worker.domain.draft import DecisionBuilder, Kind, ScopeState, Steps
from flujo_worker.domain.flow import enter as begin
from flujo_worker.domain.flow import finish, give_up, is_final, open_child, open_container


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    """Begin the body."""
    container = open_container(draft, scope, node)
    yield from begin(draft, open_child(draft, container, "/body", "body", 0, container.output))


def closed(draft: DecisionBuilder, container: ScopeState, node: Node, body: ScopeState) -> Steps:
    """Continue with what the body gave, or without it; control flow ends the run as everywhere."""
    if body.status == "succeeded":
        yield from finish(draft, container, body.output, body.context)
    elif is_final(body.fault):
        yield from give_up(draft, container, body.fault)
    else:
        yield from finish(draft, container, container.output, container.context)


KIND = Kind(enter=enter, closed=closed)
