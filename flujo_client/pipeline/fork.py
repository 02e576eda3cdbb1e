"""From a run to one that begins again at one of its steps: what `retry` and `fork` record. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flujo_client.contract.admission import Gate
from flujo_client.contract.context import PipelineContext
from flujo_client.contract.envelope import RunHeader
from flujo_client.contract.limits import UsageLimits
from flujo_client.contract.records import LIVE_RUN, NewRun
from flujo_client.errors import RetryError
from flujo_client.pipeline.submit import Order, first_of, stored_metadata
from flujo_client.plan.plan import Plan
from flujo_client.serial import Packed, digest

RETRIED_BEFORE = "ALREADY_RETRIED"


@dataclass(frozen=True, slots=True)
class RetryableRun:
    """The state of a run that may be retried."""

    ticket: RunHeader
    """The header of the run's messages."""
    plan: Plan
    status: str
    cursor: int
    """The place of the top-level step that the run had reached; the number of steps if all had ended."""
    is_child: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    patience_s: float | None = None
    """Seconds from the run's beginning to its deadline."""
    gates: tuple[Gate, ...] = ()
    retried_as: str | None = None
    """The run that last retried this run."""

    @property
    def names(self) -> list[str]:
        """Return the names of the top-level steps."""
        return [node.name for node in self.plan.nodes]

    @property
    def begun(self) -> list[str]:
        """Return the names of those that have begun."""
        return self.names[: self.cursor + 1]


@dataclass(frozen=True, slots=True)
class Beginning:
    """The input and context of a top-level step, or references to them."""

    input: Packed
    context: Packed | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFork(NewRun):
    """Everything that a retry or a fork records in one commit: the run, its root scope, the outputs it takes over, and its first attempt."""

    forked_from: str
    place: int
    """The place of the step at which it begins."""
    taken: tuple[str, ...]
    """The names of the steps before that place in the old run, in their order."""
    keeps: int = 0
    """The number of steps, from the first, that began as in the old run, so that the new run can be forked at them."""
    of_live: bool = False
    """Whether the old run may be live."""
    again: bool = False
    """Whether the old run may have been retried before."""
    actor: str | None = None
    """The person who begins the run again."""


def place_of(retryable_run: RetryableRun, from_step: str | None) -> int:
    """Find the place where a retry begins: the named step, or the one at which the run failed; raises RetryError."""
    _check_not_child(retryable_run)
    run, status = retryable_run.ticket.run, retryable_run.status
    if status in LIVE_RUN:
        raise RetryError(f"run {run} is still {status}", suggestion="cancel it first", code="RUN_IS_LIVE")
    if from_step is not None:
        return begun_place(retryable_run, from_step)
    if status != "failed" or retryable_run.cursor >= len(retryable_run.names):
        message = f"run {run} is {status}, and none of its steps failed"
        raise _no_step(message, retryable_run.begun, code="NO_STEP_FAILED")
    return retryable_run.cursor


def begun_place(retryable_run: RetryableRun, from_step: str) -> int:
    """Find the place of a top-level step that a run has begun, live or not; raises RetryError."""
    _check_not_child(retryable_run)
    run, names, begun = retryable_run.ticket.run, retryable_run.names, retryable_run.begun
    if from_step not in names:
        raise _no_step(f"run {run} has no top-level step '{from_step}'", begun)
    if from_step not in begun:
        raise _no_step(f"run {run} never reached step '{from_step}'", begun, code="STEP_NOT_BEGUN")
    return names.index(from_step)


def place_in(plan: Plan, from_step: str) -> int:
    """Find the place of a step in the plan that a fork is to begin under; raises RetryError if there is none."""
    names = [node.name for node in plan.nodes]
    if from_step not in names:
        raise _no_step(f"the present code of '{plan.name}' has no top-level step '{from_step}'", names, "begin at")
    return names.index(from_step)


def _check_not_child(retryable_run: RetryableRun) -> None:
    if retryable_run.is_child:
        message = f"run {retryable_run.ticket.run} is a step of another run"
        raise RetryError(message, suggestion="retry that run, from the step that began this one", code="CHILD_RUN")


def _no_step(message: str, names: list[str], what: str = "retry from", *, code: str = "UNKNOWN_STEP") -> RetryError:
    return RetryError(message, suggestion=f"{what} one of these: " + ", ".join(map("'{}'".format, names)), code=code)


def retried_before(run: str, retried_as: str) -> RetryError:
    """Return the error for a second retry of a run."""
    message = f"run {run} was already retried, as run {retried_as}"
    way_out = "look at that one; to repeat the effects of the steps once more, pass again=True (--again)"
    return RetryError(message, suggestion=way_out, code=RETRIED_BEFORE)


def limits_of(retryable_run: RetryableRun) -> UsageLimits | None:
    """Return the limits that the run had."""
    kept = (retryable_run.ticket.limits or {}).get("limits")
    return None if kept is None else UsageLimits(**kept)


def new_fork(  # noqa: PLR0913 - one for each fact
    retryable_run: RetryableRun,
    place: int,
    beginning: Beginning,
    order: Order,
    *,
    inline: int,
    control_queue: str,
    again: bool = False,
    onto: Plan | None = None,
) -> NewFork:
    """Make the value that a retry or a fork records, which begins at the step at `place`, with its input and context as values, not references.

    Options that the order does not set are those of the old run, which with `again` may have been retried before; a fork may always be repeated.
    `inline` is the size in bytes above which a value is stored once and referenced; `onto` the plan of the present code, for a fork. Raises
    RetryError if that has no such step.
    """
    old, names, plan = retryable_run.ticket, retryable_run.names, onto or retryable_run.plan
    new_place = place_in(plan, names[place])
    node = plan.nodes[new_place]
    before = [each.name for each in plan.nodes[:new_place]]
    ticket = replace(
        old,
        run=order.run_id,
        fingerprint=plan.fingerprint,
        queue=order.queue or old.queue,
        priority=old.priority if order.priority is None else order.priority,
        deadline=order.deadline,
        limits=order.limits,
        is_gated=bool(retryable_run.gates),
    )
    context = None if beginning.context is None else _owned(beginning.context, order.run_id)
    first, large = first_of(ticket, node, beginning.input, context, inline=inline, control_queue=control_queue)
    return NewFork(
        first=first,
        plan=plan,
        forked_from=old.run,
        place=new_place,
        taken=tuple(names[:place]),
        digest=digest(["retry" if onto is None else f"fork {plan.fingerprint}", old.run, node.name]),
        keeps=new_place if names[:place] == before else 0,
        of_live=onto is not None,
        again=again or onto is not None,
        blobs=tuple(each for each in large if not each.is_reference),
        idempotency_key=order.idempotency_key,
        metadata=stored_metadata(order.metadata),
        gates=tuple(replace(gate, policy="queue", wait_s=0.0) for gate in retryable_run.gates),
    )


def _owned(context: Packed, run: str) -> Packed:
    """Set the new run's id in a PipelineContext; leave every other context unchanged, byte for byte."""
    tree = context.tree()
    fields = tree.get("v") if isinstance(tree, dict) else None
    if not isinstance(fields, dict) or not PipelineContext.model_fields.keys() <= fields.keys():
        return context
    return Packed.of({**tree, "v": {**fields, "run_id": run}})
