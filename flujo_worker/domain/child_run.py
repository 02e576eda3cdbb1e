"""A child run: a step of a run that is a separate run.

An imported pipeline is one that its parent waits for, a step in the background one that its parent does not wait for (ADR 19). It has
its parent's plan and code, and begins at the body of its container. Its id is derived, so that who decides again decides the same.
"""

from __future__ import annotations

from dataclasses import replace

from flujo_client.address import child_run_id
from flujo_client.contract.envelope import RunHeader
from flujo_client.contract.outcome import Fault
from flujo_client.pipeline.limits import of_task
from flujo_client.plan.plan import Node
from flujo_client.trace_context import own_trace_parent
from flujo_worker.domain.draft import DecisionBuilder, ScopeState, StepsWithResult
from flujo_worker.domain.flow import child_of
from flujo_worker.domain.values import ChildRun, ChildRunRow, NextAttempt, ReadScope

BODY = "/body"


def id_of(draft: DecisionBuilder, container: ScopeState) -> str:
    return child_run_id(draft.notice.envelope.ticket.run, container.address)


def begin(draft: DecisionBuilder, container: ScopeState, node: Node) -> None:
    """Begin the child run that an import has opened for and waits for."""
    first = _first(draft, container, node)
    ticket = replace(_ticket(draft), run=id_of(draft, container), root=first.address, is_gated=False)
    _begin(draft, container, ChildRun(ticket, container.address, node.rules["own_run"], first))
    draft.emit("child_run.begun", step=node.name, child_run=ticket.run)


def launch(draft: DecisionBuilder, container: ScopeState, node: Node) -> None:
    """Begin the child run of a background step: its parent does not wait for it, so they share neither a deadline nor a budget."""
    first, ticket, run = _first(draft, container, node), _ticket(draft), id_of(draft, container)
    limits = of_task(ticket.limits, run, node.path)
    ticket = replace(ticket, run=run, root=first.address, deadline=None, limits=limits, is_gated=False)
    _begin(draft, container, ChildRun(ticket, None, node.name, first))
    container.metadata["is_background"] = True
    draft.emit("background.launched", step=node.name, task_id=run)


def _ticket(draft: DecisionBuilder) -> RunHeader:
    """Return the header of the parent's messages, with the trace that the child run is a part of."""
    ticket = draft.notice.envelope.ticket
    return replace(ticket, trace_parent=ticket.trace_parent or own_trace_parent(ticket.run))


def _begin(draft: DecisionBuilder, container: ScopeState, child: ChildRun) -> None:
    draft.child_run = child
    container.metadata["child_run"] = child.run


def _first(draft: DecisionBuilder, container: ScopeState, node: Node) -> NextAttempt:
    """Make the first work row of the run that begins at a container's body."""
    first = node.bodies["body"][0]
    root = replace(child_of(container, BODY, node.name, 0, container.output), parent=None, lanes={}, code=())
    return draft.attempt(root, first, kind="step" if first.spec.performs else "start")


def ended(draft: DecisionBuilder, container: ScopeState) -> StepsWithResult:
    """Read how the child run ended; one that was stopped has failed, and says by what."""
    run = id_of(draft, container)
    row: ChildRunRow = yield ReadScope(container.address, child_run=run)
    if row.status == "succeeded" or row.fault is not None:
        return row
    return replace(row, fault=_stopped(row))


def _stopped(row: ChildRunRow) -> Fault:
    message = f"child run {row.run} {'was ' if row.status == 'cancelled' else ''}{row.status}"
    if row.reason:
        message = f"{message}: {row.reason}"
    code = f"CHILD_{row.status.upper()}"
    return Fault("system", "ExecutionError", message, message, module="flujo_client.errors", code=code)
