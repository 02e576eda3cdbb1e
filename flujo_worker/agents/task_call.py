"""Call a Celery task in an attempt, by Celery's own tracer: its hooks, signals, retries and instrumentation act as around any task.

The tracer runs as for `Task.apply`: nothing is published, and no result is stored. What the task asks for becomes the attempt's outcome. The
three methods that would act on the task's own message or result act on the attempt instead, on the task object alone, and only inside a step.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Final, NoReturn

from celery import uuid
from celery.app import trace
from celery.exceptions import Ignore, SoftTimeLimitExceeded
from celery.states import FAILURE, RETRY, SUCCESS

from flujo_client.attempt_info import AttemptInfo
from flujo_client.errors import NonRetryableError
from flujo_client.pipeline.celery_task import TaskAgent
from flujo_worker.errors import RetryRequested
from flujo_worker.observe.log import emit
from flujo_worker.runtime.attempt_run import current_run
from flujo_worker.runtime.faults import has_sentry


def call_task(agent: TaskAgent, data: Any) -> Any:
    """Call a task with a step's input, in this thread. Raises RetryRequested for its `retry`, and NonRetryableError for what a step cannot do."""
    args, kwargs = agent.arguments(data)
    task = agent.task.app.tasks.get(agent.name, agent.task)
    run = current_run()
    request = _request(task, None if run is None else run.info)
    _let_act_on_attempt(task)
    tracer = trace.build_tracer(task.name, task, eager=True, app=task.app)
    with _tagged_in_sentry(request), _soft_limit(task.soft_time_limit):
        traced: Any = tracer(request["id"], list(args), kwargs, request)
    state = SUCCESS if traced.info is None else traced.info.state
    if run is not None and state in (SUCCESS, FAILURE, RETRY):
        run.signalled = state
    if state == SUCCESS:
        return traced.retval
    error = traced.info.retval
    if state == RETRY:
        raise _retry(task, error, args, kwargs) from error.exc
    if state == FAILURE:
        error.is_in_sentry = getattr(task, "_sentry_is_patched", False)
        raise error
    if isinstance(error, _NotInStep):
        raise NonRetryableError(str(error), suggestion=error.way_out)
    way_out = "a step ends with a result or an error: return a value, or raise another exception"
    raise NonRetryableError(f"task '{task.name}' raised {type(error).__name__}: {error}", suggestion=way_out)


def _request(task: Any, info: AttemptInfo | None) -> dict[str, Any]:
    known: dict[str, Any] = {"id": uuid(), "retries": 0}
    if info is not None:
        known = {"id": info.key, "retries": info.number - 1, "root_id": info.run_id}
        known |= {"flujo_run": info.run_id, "flujo_step": info.step}
        known |= {} if info.trace_parent is None else {"traceparent": info.trace_parent}
    delivery = {"exchange": "", "routing_key": info.queue if info else "", "priority": None, "redelivered": False}
    limits = [task.time_limit, task.soft_time_limit]
    # As `apply` has it: `retry` raises without publishing anything.
    return known | {"task": task.name, "is_eager": True, "delivery_info": delivery, "timelimit": limits}


def _retry(task: Any, asked: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Exception:
    """Return the error by which the engine begins another attempt, when the task wants it."""
    again = asked.sig
    if again is not None and (tuple(again.args), dict(again.kwargs)) != (args, kwargs):
        what = f"task '{task.name}' calls `retry` with other arguments; a step's input stays the same"
        return NonRetryableError(what, suggestion="let the task return what is left to do, in a loop of the pipeline")
    when = asked.when or 0
    after_s = (when - task.app.now()).total_seconds() if isinstance(when, datetime) else float(when)
    return RetryRequested(f"task '{task.name}' asks for another attempt: {asked}", after_s=max(0.0, after_s))


class _NotInStep(Ignore):
    """A task calls what it cannot in a step. Not even `autoretry_for=(Exception,)` retries this."""

    def __init__(self, message: str, way_out: str) -> None:
        super().__init__(message)
        self.way_out = way_out


def _let_act_on_attempt(task: Any) -> None:
    """Replace methods on this object by ones that know the attempt. Outside of one they do what they did."""
    for name, instead in _INSTEAD.items():
        if name not in vars(task):
            setattr(task, name, partial(_call, task, getattr(task, name), instead))


def _call(task: Any, own: Callable[..., Any], instead: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    run = current_run()
    is_in_step = run is not None and run.info is not None and task.request.id == run.info.key
    return instead(task, *args, **kwargs) if is_in_step else own(*args, **kwargs)


def _emit_state(_: Any, task_id: str | None = None, state: str | None = None, meta: Any = None, **__: Any) -> None:  # noqa: ARG001 - Celery's signature
    emit("task.state", state=state, meta=meta)


def _refuse(name: str, way_out: str) -> Callable[..., NoReturn]:
    def refuse(task: Any, *_: Any, **__: Any) -> NoReturn:
        raise _NotInStep(f"task '{task.name}' calls `{name}`, which it cannot in a step", way_out)

    return refuse


_INSTEAD: Final[Mapping[str, Callable[..., Any]]] = {
    "update_state": _emit_state,
    "replace": _refuse(
        "replace", "return a value, and make what follows a step, behind a router if it depends on the value"
    ),
    "add_to_chord": _refuse("add_to_chord", "use a step that maps over a list, which may come from the step before"),
}


@contextmanager
def _tagged_in_sentry(request: Mapping[str, Any]) -> Iterator[None]:
    """Tag what Sentry's own integration reports of the task with its run and step."""
    if not has_sentry():
        yield
        return
    with sys.modules["sentry_sdk"].isolation_scope() as scope:
        for name in ("flujo_run", "flujo_step"):
            scope.set_tag(name, request.get(name))
        yield


@contextmanager
def _soft_limit(seconds: float | None) -> Iterator[None]:
    """Raise SoftTimeLimitExceeded in this thread after so many seconds: between two bytecodes, so not in a call that blocks in C."""
    if not seconds:
        yield
        return
    thread, lock, is_over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False

    def ring() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SoftTimeLimitExceeded))

    timer = threading.Timer(seconds, ring)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            is_over = True
        timer.cancel()
