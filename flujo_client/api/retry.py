"""What a client can do about a run that has ended: begin it again at one of its steps. A verb, as those of `flujo_client.api.operations`.

A retry is a new run. The old one stays as it is, but for a line in its story.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from flujo_client.address import new_run_id
from flujo_client.api.operations import Enqueued, publish_new, same_run, status_of
from flujo_client.errors import RetryError
from flujo_client.gateway import forks, requests
from flujo_client.gateway.effects import PingBroker, query
from flujo_client.pipeline.fork import Beginning, limits_of, new_fork, place_of
from flujo_client.pipeline.limits import in_force
from flujo_client.pipeline.submit import Order, check_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flujo_client.api.options import RetryOptions
    from flujo_client.config.manager import Settings
    from flujo_client.gateway.effects import Operation
    from flujo_client.pipeline.fork import NewFork, RetryableRun


def retry(settings: Settings, run_id: str, from_step: str | None, options: RetryOptions) -> Operation[Enqueued]:
    """Fork a new run from one that has ended, record it in one commit, then publish its first message.

    Raises:
        RunNotFound: there is no such run.
        RetryError: it is live, or cannot be begun again at that step; nothing was recorded.
    """
    yield from status_of(run_id)
    retryable_run = yield from query(forks.retryable_run(run_id))
    place = place_of(retryable_run, from_step)
    beginning = yield from _beginning(retryable_run, place)
    order = order_of(settings, retryable_run, now=time.time(), **options)
    new: NewFork = new_fork(
        retryable_run,
        place,
        beginning,
        order,
        inline=settings.limits.snapshot_inline_bytes,
        control_queue=settings.worker.control_queue,
    )
    yield PingBroker()
    recorded = yield from query(forks.fork(new))
    if recorded is None:
        return Enqueued((yield from same_run(new)), is_new=False)
    yield from publish_new((new.first,))
    return Enqueued(recorded, is_new=True)


def order_of(  # noqa: PLR0913 - one for each option of a retry
    settings: Settings,
    retryable_run: RetryableRun,
    *,
    now: float,
    idempotency_key: str | None = None,
    queue: str | None = None,
    priority: int | None = None,
    deadline_s: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    limits: Any = None,
) -> Order:
    """What is asked for: as the old run was, but for the options that are given; raises ConfigurationError for one that cannot be."""
    run, tenant = new_run_id(now), retryable_run.ticket.tenant
    patience_s = retryable_run.patience_s if deadline_s is None else deadline_s
    own = limits_of(retryable_run) if limits is None else limits
    order = Order(
        run,
        idempotency_key=idempotency_key,
        queue=queue,
        priority=priority,
        tenant=tenant,
        deadline=None if patience_s is None else now + patience_s,
        limits=in_force(settings.budgets, retryable_run.plan, own, run=run, tenant=tenant),
        metadata=retryable_run.metadata if metadata is None else metadata,
    )
    check_order(order)
    return order


def _beginning(retryable_run: RetryableRun, place: int) -> Operation[Beginning]:
    """What the step began with. Of a context that is only pointed at the value is fetched, for it may name its run."""
    run, names = retryable_run.ticket.run, retryable_run.names
    found = yield from query(forks.beginning(run, place, names[:place]))
    if found is None:
        raise checkpoint_missing(run, names[place])
    context = found.context
    if context is None or not context.is_reference:
        return found
    blobs = yield from query(requests.blobs([context.digest]))
    if context.digest not in blobs:
        raise checkpoint_missing(run, names[place])
    return Beginning(found.input, blobs[context.digest])


def checkpoint_missing(run: str, step: str) -> RetryError:
    """What is said of a run that was begun before contexts were kept, or by a worker that keeps none."""
    return RetryError(
        f"the starting state of step '{step}' of run {run} was not stored",
        suggestion="enqueue it anew: it was moved by workers of a version before retries",
        code="CONTEXT_NOT_KEPT",
    )
