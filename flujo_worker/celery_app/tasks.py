"""The Celery tasks: each reads one value and makes one call.

Their names are few and constant, because an unknown name in a header hangs its chord. For each lane, only the last delivery is a part of
its chord. All others leave the chord, and Celery acknowledges them without counting a part.

A task whose attempt failed raises `StepFailed`: that is how Celery's events, signals and instrumentations learn of it. The consequences of
the failure are committed by then. If nothing listens, the pool leaves the tracer out, and nothing is raised.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import Celery, signals
from celery.exceptions import Ignore

from flujo_client.contract.envelope import TASK_HEALTH_CHECK, TASK_RUN, TASK_SWEEP, TASKS
from flujo_client.transport.wire import SERIALIZER
from flujo_worker.attempts.isolation import DeliveryResult
from flujo_worker.celery_app.consumer.chord_parts import ChordPart, count_parts
from flujo_worker.celery_app.consumer.refusals import Refusals
from flujo_worker.celery_app.consumer.strategy import AlreadySignalled, OwnRequest, strategy
from flujo_worker.errors import StepFailed, WireError
from flujo_worker.runtime.faults import has_sentry

if TYPE_CHECKING:
    from flujo_client.config.manager import Settings
    from flujo_worker.engine.host import Host
    from flujo_worker.own_keys import OwnKeys

logger = logging.getLogger(__name__)

NEVER_S = 10 * 366 * 86_400
"""An app's own time limits would fail a step halfway, or kill it and repeat it: a step's limit is its `timeout_s`. Celery and its pools take
any falsy limit for "as in the settings"."""
_OPTIONS: dict[str, Any] = {
    "serializer": SERIALIZER,
    "ignore_result": True,
    "acks_late": True,
    "reject_on_worker_lost": True,
    "max_retries": 0,
    "time_limit": NEVER_S,
    "soft_time_limit": NEVER_S,
    "throws": (StepFailed,),  # expected: Celery logs a line for it, and we have logged more
    "typing": False,
    "Request": OwnRequest,
    # What the settings of an app would say of all its tasks.
    "rate_limit": 0,
    "track_started": False,
    "acks_on_failure": True,
    "acks_on_timeout": True,
    "acks_on_failure_or_timeout": True,
    "retry_on_worker_lost": False,
    "store_errors_even_if_ignored": False,
    "shared": False,  # Celery would give them to every other app of the process as well, with this one's host
}


def _annotate(task: Any) -> None:
    """Apply an app's `task_annotations`, except to our options: a time limit for every task would break joins, a rate limit hold steps up."""
    super(task, task).annotate()
    for name, value in _OPTIONS.items():
        setattr(task, name, value)


NAMES = frozenset({*TASKS.values(), TASK_SWEEP, TASK_HEALTH_CHECK})


def add(
    app: Celery,
    host: Callable[[], Host],
    refusals: Refusals,
    keys: Callable[[], OwnKeys],
    backend: Callable[[], Any] | None = None,
) -> None:
    """Register our tasks with an app; `host` returns this process's engine, `backend` the result backend that counts chords instead of the app's."""

    def deliver(self: Any, *args: Any) -> None:  # a join gets the parts of its chord before its message
        _deliver(self, lambda: host().deliver(self.name, args[-1], task_id=self.request.id), refusals)

    def sweep() -> None:
        host().sweep()

    def health_check() -> None:
        host().health_check()

    counting = {} if backend is None else {"backend": property(lambda _: backend())}
    register: Any = partial(
        app.task,
        Strategy=staticmethod(partial(strategy, refusals=refusals, keys=keys)),
        annotate=classmethod(_annotate),
        **_OPTIONS,
        **counting,
    )
    for name in TASKS.values():
        register(deliver, name=name, bind=True)
    register(sweep, name=TASK_SWEEP)
    register(health_check, name=TASK_HEALTH_CHECK)


def add_run(app: Celery, settings: Callable[[], Settings]) -> None:
    """Register the task that starts a run for a signature in your canvas; it follows your app's rules, and reads the settings when it is at work."""

    @app.task(name=TASK_RUN, bind=True, acks_late=True, reject_on_worker_lost=True, max_retries=None, shared=False)
    def run(self: Any, /, *given: Any, pipeline: str, **options: Any) -> Any:
        from flujo_worker.celery_app.canvas import client_of, start

        client = client_of(app, settings, os.getpid(), is_eager=bool(app.conf.task_always_eager))
        return start(self, client, pipeline, given, options)


def _deliver(task: Any, carry_out: Callable[[], DeliveryResult], refusals: Refusals) -> None:
    """Perform a delivery; one that does not count as a part of its chord has left the chord when it returns.

    A rejected message is recorded, and is not a part. Neither is an error: it would fail the chord permanently, while the sweeper has the
    work done by another delivery. These raise Ignore, as Celery intends; successes do not, because it costs fifty times as much, in copies
    of the traceback.

    Raises:
        StepFailed: the attempt failed. A part that fails would fail its chord, so it is counted here.
        AlreadySignalled: the attempt has run a task of the user's, whose signals have reported the outcome.
    """
    _name_in_monitors(task.request.shadow)
    is_part, failure, is_signalled = False, None, False
    try:
        delivered = carry_out()
        is_part, failure = delivered.is_part, delivered.failure
        is_signalled = delivered.is_signalled and bool(signals.task_success.receivers or signals.task_failure.receivers)
        if (failure is not None or is_signalled) and is_part and task.request.group:
            is_part = False
            request = task.request
            count_parts(task.app, [ChordPart(request.id, request.group, request.group_index, request.chord)])
    except WireError as refused:
        queue = str((task.request.delivery_info or {}).get("routing_key"))
        refusals.record(refused, str(task.request.id).encode(), queue=queue)
    except Exception as error:
        if not task.request.group:
            raise
        logger.exception("message %s failed", task.request.id)
        raise Ignore from error
    if task.request.group and not is_part:
        for request in task.request_stack.stack:  # an application class with its own __call__ has made a copy
            request.chord = None
    if is_signalled:
        raise AlreadySignalled(failure)
    if failure is not None:
        failed = StepFailed(failure.message)
        if failure.traceback:
            failed.add_note(failure.traceback)
        raise failed


def _name_in_monitors(name: str | None) -> None:
    """Name the present transaction of Sentry and span of OpenTelemetry, where those are imported: both know only the task's name."""
    if name is not None and has_sentry():
        sys.modules["sentry_sdk"].get_current_scope().set_transaction_name(name, source="task")
    if name is not None and (spans := sys.modules.get("opentelemetry.trace")) is not None:
        spans.get_current_span().update_name(f"run/{name}")
