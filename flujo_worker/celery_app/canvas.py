"""A run in your canvas: the task that starts it, and what its end does for the tasks around it.

`flujo.run` enqueues the run under the task's own id and leaves with Ignore, so no worker waits. Its request (the rest of the chain, the chord,
callbacks and errbacks) is stored in the run's metadata. The run's end is in the outbox of hook calls: a worker of the app does what Celery's
tracer does at a task's end, again and again until it has succeeded. So everything here happens at least once.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import NAMESPACE_OID, uuid5

from celery import Celery, signals, states
from celery.app.task import Context
from celery.exceptions import Ignore, TaskRevokedError
from kombu.serialization import dumps
from kombu.utils import json
from pydantic_core import to_jsonable_python

from flujo_client.address import is_run_id
from flujo_client.api.client import FlujoClient
from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import TASK_RUN
from flujo_client.contract.hooks import PostRunPayload
from flujo_client.errors import PipelineError, SerializationError, ServiceUnreachable
from flujo_client.pipeline.reference import telling_celery
from flujo_client.serial import Packed, Resolver, decode
from flujo_worker import failpoints
from flujo_worker.errors import NotTold

logger = logging.getLogger(__name__)

METADATA: Final = "celery"
"""The key of a run's metadata with the request of its task."""
AGAIN_S: Final = 5
"""Seconds until a task is tried again that found Postgres or Redis away."""
_KEPT: Final = (
    *("task", "id", "root_id", "parent_id", "group", "group_index", "chord", "chain", "callbacks", "errbacks"),
    *("delivery_info", "ignore_result", "reply_to", "correlation_id", "stamps", "stamped_headers"),
)
"""The fields of a request that Celery reads at a task's end."""


_clients: dict[tuple[int, Celery, bool], FlujoClient] = {}
_making = threading.Lock()


def client_of(app: Celery, settings: Callable[[], Settings]) -> FlujoClient:
    """Return the client with which this very process starts runs for an app's canvases, made on first use; it is closed with the worker."""
    is_eager = bool(app.conf.task_always_eager)
    key = os.getpid(), app, is_eager
    with _making:
        if key not in _clients:
            made = _clients[key] = FlujoClient(None if is_eager else settings(), app=app)
            for stopped in (signals.worker_shutdown, signals.worker_process_shutdown):
                stopped.connect(lambda **_: made.close(), weak=False, dispatch_uid=f"flujo client {key}")
        return _clients[key]


def start(task: Any, client: FlujoClient, pipeline: str, given: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Enqueue a run under the id of the task that is at work, and leave; a task that runs eagerly waits, and returns the output.

    Raises:
        Ignore: the run's end will be the task's.
        Retry: Postgres or Redis is away.
        FlujoError: the run cannot be; the task fails with it.
    """
    if len(given) > 1:
        raise PipelineError(
            f"a run of '{pipeline}' has one input, got {len(given)} values",
            suggestion="write `pipeline.s()` for the result of what is before it, `pipeline.si(value)` for a fixed value",
        )
    failpoints.hit("task_taken")
    value = given[0] if given else None
    chosen: dict[str, Any] = decode(dict(options), resolve=Resolver(client.settings.allowed_imports))
    if task.request.is_eager:
        return passable(task.app, client.enqueue(pipeline, value, **chosen).result().output)
    chosen["metadata"] = {**(chosen.get("metadata") or {}), METADATA: _packed(task.request)}
    try:
        client.enqueue(telling_celery(pipeline), value, run_id=run_id_of(task.request.id), **chosen)
    except ServiceUnreachable as error:
        raise task.retry(exc=error, countdown=AGAIN_S, max_retries=None) from error
    failpoints.hit("run_started")
    raise Ignore


def run_id_of(task_id: str) -> str:
    """Return the id of the run that a task starts: its own, or one that follows from it if a run's id cannot be so."""
    return task_id if is_run_id(task_id) else str(uuid5(NAMESPACE_OID, task_id))


def tell(app: Celery, payload: PostRunPayload) -> None:
    """Do what the end of a task does, for the task that waits for this run; a retry of that run has none.

    Raises:
        NotTold: the broker or the result backend is away, or something in the canvas cannot be called.
    """
    kept = payload.metadata.get(METADATA)
    request = Context({} if kept is None else json.loads(Packed.from_wire(kept).tree()))
    if request.id is None or run_id_of(request.id) != payload.run_id:
        return
    try:
        _end(app, request, payload)
    except Exception as error:
        raise NotTold(
            f"Celery's task {request.id} waits for it: {type(error).__name__}: {error}", cause=error
        ) from error


def passable(app: Celery, output: Any) -> Any:
    """Return a run's output as the app's serializers can send it: as it is, else as plain data, with the fields of models and dataclasses.

    Raises:
        SerializationError: they cannot send that either.
    """
    try:
        return _sent(app, output)
    except Exception:  # noqa: BLE001 - each serializer raises errors of its own
        logger.debug("an output is made plain for Celery")
    try:
        return _sent(app, to_jsonable_python(output))
    except Exception as error:
        raise SerializationError(
            f"the app's serializers cannot send the output, a {type(output).__name__}: {error}",
            suggestion="let the last step return plain data",
            cause=error,
        ) from error


def _sent(app: Celery, value: Any) -> Any:
    for serializer in {app.conf.task_serializer, app.conf.result_serializer}:
        dumps(value, serializer=serializer)
    return value


def _packed(request: Any) -> Any:
    kept = {name: getattr(request, name, None) for name in _KEPT}
    try:
        return Packed.of(json.dumps({name: each for name, each in kept.items() if each is not None})).to_wire()
    except TypeError as error:
        raise SerializationError(
            f"the canvas around this pipeline has a value that is not JSON: {error}",
            suggestion="pass plain data to the tasks that follow it",
            cause=error,
        ) from error


def _end(app: Celery, request: Any, payload: PostRunPayload) -> None:
    result = payload.pipeline_result
    try:
        output = passable(app, result.output)
    except Exception as error:  # noqa: BLE001 - whatever the run failed with
        is_cancelled = result.run_status == "cancelled"
        app.backend.mark_as_failure(
            request.id,
            TaskRevokedError(str(error)) if is_cancelled else error,
            request=request,
            store_result=_stores(app, request),
            state=states.REVOKED if is_cancelled else states.FAILURE,
        )
        return
    _continue(app, request, output)
    app.backend.mark_as_done(request.id, output, request=request, store_result=_stores(app, request))


def _continue(app: Celery, request: Any, output: Any) -> None:
    """Send the callbacks of a task that succeeded, and the next one of its chain, which is stored in reverse."""
    priority = (request.delivery_info or {}).get("priority") if app.conf.task_inherit_parent_priority else None
    options = {"parent_id": request.id, "root_id": request.root_id or request.id, "priority": priority}
    sent = [app.signature(each).apply_async((output,), **options) for each in request.callbacks or ()]
    if request.chain:
        *rest, following = request.chain
        sent.append(app.signature(following).apply_async((output,), chain=rest, **options))
    request.children.extend(sent)


def _stores(app: Celery, request: Any) -> bool:
    ignored = request.ignore_result
    return not (app.tasks[TASK_RUN].ignore_result if ignored is None else ignored)
