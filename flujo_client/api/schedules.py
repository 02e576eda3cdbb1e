"""Add, change and list schedules: operations, like those of `flujo_client.api.operations` (ADR 60)."""

from __future__ import annotations

from typing import Any

from flujo_client.api.operations import Enqueued, enqueue, find_pipeline, new_run_of
from flujo_client.blueprint.load import load_stored
from flujo_client.config.manager import Settings
from flujo_client.contract.schedules import ScheduleRecord, run_id_of, run_options
from flujo_client.contract.suggestions import did_you_mean
from flujo_client.errors import ClientError, ConfigurationError
from flujo_client.gateway import plan_requests, schedule_requests
from flujo_client.gateway.effects import Operation, query
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.reference import is_blueprint, with_reference_options
from flujo_client.pipeline.schedule import Schedule
from flujo_client.pipeline.submit import pack
from flujo_client.serial import Resolver, decode, encode


def add(settings: Settings, schedule: Schedule) -> Operation[ScheduleRecord]:
    """Check a schedule and the run that it would enqueue, and store it or replace the one of its name."""
    name, timing, options = schedule.name, schedule.timing, dict(schedule.options)
    if schedule.every_s is not None and schedule.every_s < settings.worker.sweep_s:
        what = f"schedule '{name}': every_s is {schedule.every_s}, but workers look only every {settings.worker.sweep_s:g} s (worker.sweep_s)"
        raise ConfigurationError(what)
    found = yield from find_pipeline(settings, schedule.pipeline, has_context=options.get("context") is not None)
    now = yield from query(schedule_requests.now())
    slot = timing.after(now)
    if slot is None:
        raise ConfigurationError(f"schedule '{name}' would never fire: its next time is after until, {schedule.until}")
    each: Any = run_options(name, schedule.tenant, schedule.overlap, options)
    new = new_run_of(settings, found, schedule.input, each, run_id=run_id_of(name, slot))
    order = encode({"input": schedule.input, "options": options}, path="schedule")
    return (yield from query(schedule_requests.add(schedule, new, pack(order, "schedule", settings.limits), slot)))


def pause(name: str) -> Operation[None]:
    """Pause a schedule; raises ClientError if there is none of that name."""
    if not (yield from query(schedule_requests.pause(name))):
        raise (yield from _not_found(name))


def resume(name: str) -> Operation[None]:
    """Resume a schedule from its first slot after now; raises ClientError if there is none of that name."""
    is_resumed = False
    while not is_resumed:  # else its timing was replaced just now
        found = yield from _find(name)
        now = yield from query(schedule_requests.now())
        is_resumed = yield from query(schedule_requests.resume(found, found.timing.after(now)))


def remove(name: str) -> Operation[None]:
    """Delete a schedule; raises ClientError if there is none of that name."""
    if not (yield from query(schedule_requests.remove(name))):
        raise (yield from _not_found(name))


def run_now(settings: Settings, name: str) -> Operation[Enqueued]:
    """Enqueue a run of a schedule outside its slots."""
    found = yield from _find(name)
    stored = yield from query(schedule_requests.order(name))
    if stored is None:
        raise (yield from _not_found(name))
    packed, fingerprint = stored
    order: dict[str, Any] = decode(packed.tree(), resolve=Resolver(settings.allowed_imports))
    options: Any = run_options(name, found.tenant, found.overlap, order["options"])
    pipeline: str | Pipeline = found.reference
    if is_blueprint(found.reference):
        text = str((yield from query(plan_requests.plan(fingerprint))).plan.blueprint)
        pipeline = with_reference_options(load_stored(text, allowed=settings.allowed_imports), found.reference)
    return (yield from enqueue(settings, pipeline, order["input"], options))


def _find(name: str) -> Operation[ScheduleRecord]:
    found = yield from query(schedule_requests.schedules(name))
    if not found:
        raise (yield from _not_found(name))
    return found[0]


def _not_found(name: str) -> Operation[ClientError]:
    known = [each.name for each in (yield from query(schedule_requests.schedules()))]
    near = did_you_mean(name, known)
    what = f"no schedule '{name}'"
    return ClientError(what, suggestion=near or "`flujo schedules list` shows them", code="UNKNOWN_SCHEDULE")
