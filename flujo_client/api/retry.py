"""Begin a run again at one of its steps: operations, like those of `flujo_client.api.operations`.

A retry is a new run of the plan that the old one had; a fork is one of the present code. The old run does not change, except for one event.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Unpack

from flujo_client.address import new_run_id
from flujo_client.api.operations import Enqueued, NotRecorded, find_pipeline, publish, record_or_find, status_of
from flujo_client.api.options import RetryOptions, refuse_unknown
from flujo_client.config.manager import Settings
from flujo_client.errors import RetryError
from flujo_client.gateway import plan_requests, requests
from flujo_client.gateway.effects import Operation, ReachBroker, query
from flujo_client.pipeline.fork import (
    Beginning,
    NewFork,
    RetryableRun,
    begun_place,
    limits_of,
    new_fork,
    place_in,
    place_of,
    retried_before,
)
from flujo_client.pipeline.limits import in_force
from flujo_client.pipeline.reference import is_blueprint
from flujo_client.pipeline.submit import Order, check_order, deadline_in
from flujo_client.plan.plan import Plan


def retry(
    settings: Settings, run_id: str, from_step: str | None, options: RetryOptions, *, again: bool = False
) -> Operation[Enqueued]:
    """Fork a new run from one that has ended, record it in one commit, then publish its first message.

    A run is retried once, unless `again`: its steps may have had effects on the outside world twice otherwise.
    """
    refuse_unknown(options, RetryOptions, "retry")
    retryable_run = yield from query(plan_requests.retryable_run(run_id))
    place = place_of(retryable_run, from_step)
    return (yield from _begin_again(settings, retryable_run, place, options, again=again))


def fork(settings: Settings, run_id: str, from_step: str, options: RetryOptions) -> Operation[Enqueued]:
    """Begin any run again at a step that it has begun, under the present code, as `retry` does under the run's own.

    The present code is that of this process; where that cannot import the pipeline, the one that was enqueued last.
    """
    refuse_unknown(options, RetryOptions, "fork")
    retryable_run = yield from query(plan_requests.retryable_run(run_id))
    place, onto, reference = begun_place(retryable_run, from_step), retryable_run.plan, retryable_run.ticket.reference
    if not is_blueprint(reference):
        onto = (yield from find_pipeline(settings, reference, has_context=True)).plan
    return (yield from _begin_again(settings, retryable_run, place, options, onto=onto))


def _begin_again(
    settings: Settings,
    retryable_run: RetryableRun,
    place: int,
    options: RetryOptions,
    *,
    again: bool = False,
    onto: Plan | None = None,
) -> Operation[Enqueued]:
    if onto is not None:
        place_in(onto, retryable_run.names[place])
    beginning = yield from _beginning(retryable_run, place)
    under = retryable_run if onto is None else replace(retryable_run, plan=onto)
    order = order_of(settings, under, now=time.time(), **options)
    inline, joins = settings.limits.snapshot_inline_bytes, settings.worker.control_queue
    new = new_fork(retryable_run, place, beginning, order, inline=inline, control_queue=joins, again=again, onto=onto)
    yield ReachBroker()
    recorded = yield from _recorded(replace(new, actor=options.get("actor")))
    yield from publish(recorded.unpublished, has_grace=True)
    return Enqueued(recorded.run_id, recorded.is_new)


def _recorded(new: NewFork) -> Operation[Enqueued]:
    """Record the new run, or find the one that has its key; raises RetryError if the old one was retried before."""
    try:
        return (yield from record_or_find(plan_requests.fork, new))
    except NotRecorded:
        retried_as = (yield from query(plan_requests.retryable_run(new.forked_from))).retried_as
        if retried_as is None:
            raise
        raise retried_before(new.forked_from, retried_as) from None


def order_of(settings: Settings, retryable_run: RetryableRun, *, now: float, **options: Unpack[RetryOptions]) -> Order:
    """Make the order: that of the old run with the given options; raise ConfigurationError for an invalid one."""
    run, tenant, deadline_s = new_run_id(now), retryable_run.ticket.tenant, options.get("deadline_s")
    patience_s = retryable_run.patience_s if deadline_s is None else deadline_s
    limits, metadata = options.get("limits"), options.get("metadata")
    own = limits_of(retryable_run) if limits is None else limits
    order = Order(
        run,
        idempotency_key=options.get("idempotency_key"),
        queue=options.get("queue"),
        priority=options.get("priority"),
        tenant=tenant,
        deadline=deadline_in(patience_s, now),
        limits=in_force(settings.budgets, retryable_run.plan, own, run=run, tenant=tenant),
        metadata=retryable_run.metadata if metadata is None else metadata,
    )
    check_order(order)
    return order


def _beginning(retryable_run: RetryableRun, place: int) -> Operation[Beginning]:
    """Read what the step began with. Fetch a context that is stored as a blob, because it may name its run."""
    run, names = retryable_run.ticket.run, retryable_run.names
    found = yield from query(plan_requests.beginning(run, place, names[:place]))
    if found is None:
        yield from status_of(run)  # raises RunNotFound if it was deleted meanwhile
        raise checkpoint_missing(run, names[place])
    context = found.context
    if context is None or not context.is_reference:
        return found
    blobs = yield from query(requests.blobs([context.digest]))
    if context.digest not in blobs:
        yield from status_of(run)
        raise checkpoint_missing(run, names[place])
    return Beginning(found.input, blobs[context.digest])


def checkpoint_missing(run: str, step: str) -> RetryError:
    """Make the error for a run that began before contexts were stored, or on a worker that stores none."""
    what = f"the starting state of step '{step}' of run {run} was not stored"
    way_out = "enqueue it again: its workers had a version that does not support retries"
    return RetryError(what, suggestion=way_out, code="CONTEXT_NOT_KEPT")
