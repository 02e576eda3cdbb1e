"""An optional step: its body, whose failure is replaced by the step's input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_worker.domain.draft import Kind
from flujo_worker.domain.flow import enter as begin
from flujo_worker.domain.flow import finish, give_up, is_final, open_box, open_child

if TYPE_CHECKING:
    from flujo_client.contract.plan import Node
    from flujo_worker.domain.draft import DecisionBuilder, ScopeState, Steps


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    """Begin the body."""
    box = open_box(draft, scope, node)
    yield from begin(draft, open_child(draft, box, "/body", "body", 0, box.output))


def closed(draft: DecisionBuilder, box: ScopeState, node: Node, body: ScopeState) -> Steps:
    """Continue with what the body gave, or without it; control flow ends the run as everywhere."""
    if body.status == "succeeded":
        yield from finish(draft, box, body.output, body.context)
    elif is_final(body.fault):
        yield from give_up(draft, box, body.fault)
    else:
        yield from finish(draft, box, box.output, box.context)


KIND = Kind(enter=enter, closed=closed)
