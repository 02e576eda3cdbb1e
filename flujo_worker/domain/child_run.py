"""A child run: an imported pipeline that runs as a run of its own, which the run it is a step of waits for (ADR 0023).

It has its parent's plan and code, and begins inside it, at the body of its import: that address is its root. Its id is derived, so that
who decides again decides the same.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

from flujo_client.contract.outcome import Fault
from flujo_client.contract.run import SEQUENCE
from flujo_worker.domain.draft import Scope
from flujo_worker.domain.values import ChildRun, Look

if TYPE_CHECKING:
    from flujo_client.pipeline.plan import Node
    from flujo_worker.domain.draft import Asked, Draft
    from flujo_worker.domain.values import ChildRunRow

BODY = "/body"
_MOST_OF_FIRST, _DIGITS = 59, 20


def child_run_id(parent: str, address: str) -> str:
    """The id of the run that `parent` begins at a container: the first run of all, then a digest of who begins it and where.

    However deep child runs nest, it has no more than the 80 characters that a run's id may have.
    """
    first = parent.partition(".")[0][:_MOST_OF_FIRST]
    return f"{first}.{sha256(f'{parent}:{address}'.encode()).hexdigest()[:_DIGITS]}"


def begin(draft: Draft, box: Scope, node: Node) -> None:
    """Begin the child run that a container has opened for."""
    parent, first = draft.notice.envelope.ticket.run, node.bodies["body"][0]
    root = Scope(
        address=box.address + BODY,
        parent=None,
        kind=SEQUENCE,
        step=box.step,
        name=node.name,
        place=0,
        cursor=0,
        version=0,
        output=box.output,
        context=box.context,
        lanes={},
    )
    is_step = draft.kinds[first.kind].performed
    work = draft.attempt(root, first, kind="step" if is_step else "start")
    run = child_run_id(parent, box.address)
    draft.child_run = ChildRun(run, box.address, node.rules["own_run"], work)
    box.metadata["child_run"] = run
    draft.tell("child_run.begun", step=node.name, child_run=run)


def ended(draft: Draft, box: Scope) -> Asked:
    """Read how the child run ended; one that was stopped has failed, and says by what."""
    run = child_run_id(draft.notice.envelope.ticket.run, box.address)
    row: ChildRunRow = yield Look(box.address, child_run=run)
    if row.status == "succeeded" or row.fault is not None:
        return row
    return replace(row, fault=_stopped(row))


def _stopped(row: ChildRunRow) -> Fault:
    said = f"child run {row.run} was {row.status}" if row.status == "cancelled" else f"child run {row.run} {row.status}"
    if row.reason:
        said = f"{said}: {row.reason}"
    code = f"CHILD_{row.status.upper()}"
    return Fault("system", "ExecutionError", said, said, module="flujo_client.errors", code=code)
