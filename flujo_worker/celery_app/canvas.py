"""A run in your canvas: the task that starts it, and what its end does for the tasks around it (ADR 50).

`flujo.run` enqueues the run under the task's own id and leaves with Ignore, so no worker waits. Its request (the rest of the chain, the chord,
callbacks and errbacks) is stored in the run's metadata. The run's end is in the outbox of hook calls: a worker of the app does what Celery's
tracer does at a task's end, again and again until it has succeeded. So everything here happens at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from celery import Celery, signals, states
from celery.app.task import Context
from celery.exceptions import Ignore, TaskRevokedError
from kombu.utils import json
from pydantic_core import to_jsonable_python

from flujo_client.api.client import FlujoClient
from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import TASK_RUN
from flujo_client.contract.hooks import PostRunPayload
from flujo_client.errors import PipelineError, ServiceUnreachable
from flujo_client.serial import Packed, Resolver, decode
from flujo_worker import failpoints
from flujo_worker.errors import TaskNotEnded

METADATA: Final = "celery"
_KEPT: Final = (
    *("task", "id", "root_id", "parent_id", "group", "group_index", "chord", "chain", "callbacks", "errbacks"),
    *("delivery_info", "ignore_result", "reply_to", "correlation_id", "stamps", "stamped_headers"),
)
"""The fields of a request that Celery reads at a task's end."""


@cache
def client_of(app: Celery | None, settings: Callable[[], Settings], _pid: int, *, is_eager: bool) -> FlujoClient:
    """Return the client with which a process starts runs for an app's canvases, or for schedules; it is closed with the worker."""
    client = FlujoClient(None if is_eager else settings(), app=app)
    for stopped in (signals.worker_shutdown, signals.worker_process_shutdown):
        stopped.connect(lambda **_: client.close(), weak=False, dispatch_uid=f"flujo_client {id(client)}")
    return client


def start(task: Any, client: FlujoClient, pipeline: str, given: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Enqueue a run under the id of the task that is at work, and leave by Ignore, or Retry; an eager task waits, and returns the output."""
    if len(given) > 1:
        way_out = "write `pipeline.s()` for the result of what is before it, `pipeline.si(value)` for a fixed value"
        raise PipelineError(f"a run of '{pipeline}' has one input, got {len(given)} values", suggestion=way_out)
    failpoints.hit("task_taken")
    value = given[0] if given else None
    chosen: dict[str, Any] = decode(dict(options), resolve=Resolver(client.settings.allowed_imports))
    if task.request.is_eager:
        return passable(task.app, client.enqueue(pipeline, value, **chosen).result().output)
    kept = {name: each for name in _KEPT if (each := getattr(task.request, name, None)) is not None}
    chosen["metadata"] = {**(chosen.get("metadata") or {}), METADATA: Packed.of(json.dumps(kept)).to_wire()}
    try:
        reference = f"{pipeline}{'&' if '?' in pipeline else '?'}canvas=celery"
        client.enqueue(reference, value, run_id=task.request.id, **chosen)
    except ServiceUnreachable as error:
        raise task.retry(exc=error, countdown=5, max_retries=None) from error
    failpoints.hit("run_started")
    raise Ignore


def end_task(app: Celery, payload: PostRunPayload) -> None:
    """Do what the end of a task does, for the task that waits for this run, or raise TaskNotEnded; a retry of that run has no task."""
    kept = payload.metadata.get(METADATA)
    request = Context({} if kept is None else json.loads(Packed.from_wire(kept).tree()))
    if request.id != payload.run_id:
        return
    try:
        _end(app, request, payload)
    except Exception as error:
        raise TaskNotEnded(f"Celery's task {request.id} waits for it: {error!r}", cause=error) from error


def passable(app: Celery, output: Any) -> Any:
    """Return a run's output as the app's serializers can send it: with pickle as it is, else as plain data, with the fields of models.

    Raises PydanticSerializationError: it cannot be made plain.
    """
    return output if app.conf.result_serializer == app.conf.task_serializer == "pickle" else to_jsonable_python(output)


def _end(app: Celery, request: Any, payload: PostRunPayload) -> None:
    result, ignored = payload.pipeline_result, request.ignore_result
    stores = not (app.tasks[TASK_RUN].ignore_result if ignored is None else ignored)
    try:
        output = passable(app, result.output)
    except Exception as error:  # noqa: BLE001 - whatever the run failed with
        is_cancelled = result.run_status == "cancelled"
        failed, state = (TaskRevokedError(str(error)), states.REVOKED) if is_cancelled else (error, states.FAILURE)
        app.backend.mark_as_failure(request.id, failed, request=request, store_result=stores, state=state)
        return
    _continue(app, request, output)
    app.backend.mark_as_done(request.id, output, request=request, store_result=stores)


def _continue(app: Celery, request: Any, output: Any) -> None:
    """Send the callbacks of a task that succeeded, and the next one of its chain, which is stored in reverse."""
    priority = (request.delivery_info or {}).get("priority") if app.conf.task_inherit_parent_priority else None
    options = {"parent_id": request.id, "root_id": request.root_id or request.id, "priority": priority}
    sent = [app.signature(each).apply_async((output,), **options) for each in request.callbacks or ()]
    if request.chain:
        *rest, following = request.chain
        sent.append(app.signature(following).apply_async((output,), chain=rest, **options))
    request.children.extend(sent)
