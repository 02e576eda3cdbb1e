"""Find failed background runs, continue them, and fail the stale ones. Operations, like those of `flujo_client.api.operations`.

Nothing here executes a run: each writes a new run, an answer, or a request to stop.
"""

from __future__ import annotations

from typing import Any

from flujo_client.address import AttemptKey, child_run_id
from flujo_client.api import approvals
from flujo_client.api.operations import Enqueued, record_of
from flujo_client.config.manager import Settings
from flujo_client.contract.outcome import Fault
from flujo_client.contract.records import LIVE_RUN, BackgroundRestart, RunRecord
from flujo_client.contract.run_filter import RunFilter
from flujo_client.errors import ConfigurationError, FeatureDisabled, ResumeError
from flujo_client.gateway import requests
from flujo_client.gateway.effects import AskBroker, Operation, query
from flujo_client.pipeline.submit import by_reference, pack
from flujo_client.serial import Packed, encode

HOUR_S = 3600.0
MOST = 10_000
"""As many are found at once."""
AGAIN = "again"


def failed(parent_run_id: str | None, hours_back: float) -> requests.Request[list[RunRecord]]:
    """List the failed background runs that have not been started again, newest first."""
    filters = RunFilter(status="failed", parent=parent_run_id, background=True, ended_within_s=hours_back * HOUR_S)
    return requests.runs(filters, limit=MOST)


def resume(settings: Settings, task_id: str, new_data: Any = None) -> Operation[Enqueued]:
    """Answer its open question; or, if it did not succeed, start it again from the beginning."""
    _need_resumability(settings)
    task = yield from record_of(task_id)
    if not task.is_background:
        raise ResumeError(f"run {task_id} does not belong to a background step", code="NO_BACKGROUND_TASK")
    if task.status == "succeeded":
        raise ResumeError(f"background step '{task.name}' has succeeded as run {task_id}", code="RUN_ENDED")
    if task.status not in LIVE_RUN:
        run_id = yield from _start_again(settings, task, new_data, wait_s=0.0)
        if run_id is None:
            what = f"run {task_id} has already been started again as run {_successor(task_id)}"
            raise ResumeError(what, suggestion="resume that one", code="STARTED_AGAIN")
        yield AskBroker(lambda post: post.request_sweep())
        return Enqueued(run_id, is_new=True)
    if new_data is None:
        what = f"run {task_id} is {task.status}, and continues unless it waits for an answer"
        way_out = "give the answer as new_data; `run.approvals()` shows the question"
        raise ResumeError(what, suggestion=way_out, code="ANSWER_MISSING")
    yield from approvals.resume(settings, task_id, new_data, {})
    return Enqueued(task_id, is_new=False)


def retry_failed(settings: Settings, parent_run_id: str, max_retries: int) -> Operation[list[Enqueued]]:
    """Start a run's failed background runs again that have retries left; each waits 1, 2, 4 … seconds, by its retries so far."""
    _need_resumability(settings)
    yield from record_of(parent_run_id)
    filters = RunFilter(status="failed", parent=parent_run_id, background=True)
    started = []
    for task in (yield from query(requests.runs(filters, limit=MOST))):
        if task.retries < max_retries:
            run_id = yield from _start_again(settings, task, None, wait_s=2.0**task.retries)
            started += [Enqueued(run_id, is_new=True)] if run_id is not None else []
    return started


def fail_stale(settings: Settings, stale_hours: float | None) -> Operation[list[str]]:
    """Fail those without a sign of life for so long; the project's `stale_hours` when None. Answers their ids."""
    hours = settings.background_tasks.stale_hours if stale_hours is None else stale_hours
    if not hours > 0:
        raise ConfigurationError(f"stale_hours must be a number of hours above 0, got {hours:g}")
    message = f"no activity for {hours:g} hours: no worker worked on it, and it waited for no answer"
    fault = Fault(
        "system",
        "ExecutionError",
        message,
        message,
        module="flujo_client.errors",
        code="BACKGROUND_STALE",
        suggestion="resume_background_task starts it again; is a worker running?",
    )
    stale = yield from query(requests.fail_stale(hours * HOUR_S, fault))
    if stale:
        yield AskBroker(lambda post: post.request_sweep())
    return stale


def _start_again(settings: Settings, task: RunRecord, new_data: Any, *, wait_s: float) -> Operation[str | None]:
    """Start it again with the context it began with; return None if another caller has done so."""
    inline = settings.limits.snapshot_inline_bytes
    launch = yield from query(requests.launch(task.id))
    value = None if new_data is None else pack(encode(new_data, path="new_data"), "new_data", settings.limits)
    before = launch.context
    if before is not None and before.is_reference:
        before = (yield from query(requests.blobs([before.digest])))[before.digest]
    new = _successor(task.id)
    context = None if before is None else _renamed(before, new, task)
    given = [each for each in (value, context) if each is not None]
    again = BackgroundRestart(
        run=task.id,
        new=new,
        first=launch.first,
        key=str(AttemptKey(new, launch.address, launch.step, 1, launch.kind)),
        context=None if context is None else by_reference(context, inline),
        input=None if value is None else by_reference(value, inline),
        wait_s=wait_s,
        blobs=tuple(each for each in given if each.size > inline),
    )
    return (yield from query(requests.start_again(again)))


def _successor(task_id: str) -> str:
    """Return the id of the run that starts another one again: it is derived, so that two concurrent callers start one run."""
    return child_run_id(task_id, AGAIN)


def _renamed(context: Packed, task_id: str, before: RunRecord) -> Packed:
    """Return the context with the new run's id, and why it is started again, in the fields it has for that."""
    tree = context.tree()
    fields = tree.get("v") if isinstance(tree, dict) else None
    if not isinstance(fields, dict):
        return context
    values = {
        "run_id": task_id,
        "task_id": task_id,
        "background_error": before.error.feedback if before.error else before.reason,
        "background_error_category": before.error.category if before.error else before.status,
    }
    return Packed.of({**tree, "v": fields | {name: values[name] for name in values.keys() & fields.keys()}})


def _need_resumability(settings: Settings) -> None:
    if not settings.background_tasks.resumability:
        way_out = "set resumability = true in [background_tasks]"
        raise FeatureDisabled("resuming background steps is turned off here", suggestion=way_out)
