"""A step: one work row for each try."""

from flujo_client.plan.plan import Node
from flujo_worker.domain import human
from flujo_worker.domain.draft import DecisionBuilder, Kind, ScopeState, Steps
from flujo_worker.domain.flow import succeed


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    draft.work(scope, node)
    yield from ()


def answered(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    """Continue with what the attempt returned, or with the answer to the question it raised."""
    if draft.notice.envelope.kind == "resume":
        yield from human.answered(draft, scope, node)
        return
    outcome, number = draft.notice.outcome, draft.notice.envelope.number
    draft.emit("step.succeeded", step=node.name, attempts=number)
    yield from succeed(draft, scope, outcome.output or scope.output, outcome.context)


KIND = Kind(enter=enter, answered=answered)
