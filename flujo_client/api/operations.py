"""The operations of both clients: each is a generator of effects that the sync or the async client performs.

Nothing here waits, connects or reads a clock, except through an effect or an argument.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from flujo_client import errors
from flujo_client.address import new_run_id
from flujo_client.api.explanations import hold
from flujo_client.api.options import EnqueueOptions, RunOptions, refuse_unknown
from flujo_client.api.step_options import options_of_attempts
from flujo_client.config.manager import Settings
from flujo_client.config.run_settings import RunSettings, Streams
from flujo_client.contract.approval import OPEN, Approval, signed
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.read import read_result, references
from flujo_client.contract.records import LIVE_RUN, AttemptRecord, EventRecord, NewRun, RunRecord, ScopeRecord
from flujo_client.contract.results import PipelineResult
from flujo_client.contract.trace import TraceNode, build_trace
from flujo_client.gateway import effects, plan_requests, requests
from flujo_client.gateway import operator_requests as checkup
from flujo_client.gateway.admission import AlreadyUnderWay, through_gates
from flujo_client.gateway.effects import AwaitRun, Operation, query
from flujo_client.gateway.requests import Request
from flujo_client.health.aggregate import build
from flujo_client.health.facts import Depths, HealthQuery
from flujo_client.health.report import HealthReport
from flujo_client.pipeline.check import check
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.fork import NewFork
from flujo_client.pipeline.limits import AdmissionOptions, gates_of, in_force
from flujo_client.pipeline.pipeline import Pipeline, walk
from flujo_client.pipeline.reference import (
    bare,
    default_name,
    is_file,
    load_pipeline,
    reference_to,
    with_reference_options,
)
from flujo_client.pipeline.step import Step
from flujo_client.pipeline.submit import Order, deadline_in, new_run
from flujo_client.plan.plan import Plan
from flujo_client.serial import Packed, Resolver
from flujo_client.trace_context import current_trace_parent
from flujo_client.transport.dead_letters import Refused

NewRunT = TypeVar("NewRunT", NewRun, NewFork)


logger = logging.getLogger(__name__)

FIRST_POLL_S, SLOWEST_POLL_S = 0.005, 0.25
LOOK_AGAIN_S = 30.0
"""Seconds after which a run's unchanged status is read again."""
EVENTS_AT_ONCE = 10_000
OWN_SERVICES_LOOK_S = 0.2
FIRST_LOOK_S = 5.0
"""Seconds after which a client queries what holds a run back; it repeats that every `LOOK_AGAIN_S`.

A client that started embedded services, which have no workers, asks almost at once.
"""


class NotRecorded(errors.ClientError):
    """A run was not recorded, and no other one has its key."""


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The result of enqueue: the run's id, whether it is new, and what is still to be published."""

    run_id: str
    is_new: bool
    unpublished: tuple[Envelope, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundPipeline:
    """A pipeline as the client found it: its plan, its reference, and the model of its context."""

    plan: Plan
    reference: str
    context_model: type[BaseModel] | None
    context: BaseModel | None = None
    """What its runs have as their context unless the caller gives one: the arguments of a canvas."""
    stream: Streams = ""
    """What of its runs is streamed unless the caller says so."""


def enqueue(
    settings: Settings, pipeline: str | Pipeline | Step, value: Any, options: EnqueueOptions
) -> Operation[Enqueued]:
    """Check everything, record the run in one commit, then publish its first message.

    Runs of one pipeline that are enqueued at the same time share the commit, unless they have keys, gates or large values.
    """
    refuse_unknown(options, EnqueueOptions, "enqueue")
    connection = options.get("connection")
    found = yield from find_pipeline(settings, pipeline, has_context=options.get("context") is not None)
    new = new_run_of(settings, found, value, options, run_id=options.get("run_id"))
    if connection is not None:
        yield from record_context_fields(settings, found.context_model, connection)
        return (yield from record_or_find(requests.record, new, connection))
    yield effects.ReachBroker()
    yield from record_context_fields(settings, found.context_model)
    if new.idempotency_key is not None or new.gates or new.blobs:
        return (yield from _begin(new))
    kind = (found.reference, found.plan.fingerprint)
    begun: Enqueued | errors.FlujoError | None = yield effects.Together(kind, new, _begin_together)
    if isinstance(begun, errors.FlujoError):
        raise begun
    return begun or (yield from _begin(new))


_recorded_in: WeakKeyDictionary[type[BaseModel], set[str]] = WeakKeyDictionary()
"""In which databases this process has recorded the fields of a context model."""


def record_context_fields(settings: Settings, model: type[BaseModel] | None, connection: Any = None) -> Operation[None]:
    """Record which fields a pipeline's context model has now: once in this process, or in each of the caller's own transactions."""
    if model is None:
        return
    recorded, database = _recorded_in.setdefault(model, set()), settings.database()
    if connection is not None or database not in recorded:
        yield from query(plan_requests.record_context_fields(model), connection)
    if connection is None:
        recorded.add(database)


def _begin(new: NewRun) -> Operation[Enqueued]:
    recorded = yield from record_or_find(requests.record, new)
    yield from publish(recorded.unpublished, has_grace=True)
    return Enqueued(recorded.run_id, recorded.is_new)


def _begin_together(news: Sequence[NewRun]) -> Operation[Sequence[Enqueued | errors.FlujoError | None]]:
    """Record runs in one commit and publish their first messages. If one is refused nothing is recorded, and each is to begin alone."""
    try:
        if len(news) == 1:
            return [(yield from _begin(news[0]))]
        yield from query(requests.record_many(news, lambda _: None, undoes=False))
    except errors.FlujoError as error:
        return [error] if len(news) == 1 else [None] * len(news)
    yield from publish([new.first for new in news], has_grace=True)
    return [Enqueued(new.first.ticket.run, is_new=True) for new in news]


def record_or_find(
    recording: Callable[..., Request[str | None]], new: NewRunT, connection: Any = None
) -> Operation[Enqueued]:
    """Record a run, and let it enter its gates if it has any; or find the run that it repeats, or the live run of its singleton.

    In the caller's own transaction a gate is locked until the caller's commit only where it may refuse or replace a run; otherwise the run
    waits for the next admission.
    """
    request, is_waiting = recording(new, grace_s=requests.GRACE_S if connection is None else 0.0), False
    if not new.gates:
        run_id = yield from query(request, connection)
    else:
        judges = connection is None or any(gate.decides_at_once for gate in new.gates)
        try:
            entering = through_gates(request, [new], lambda _, entered: entered, judges=judges)
            waits_at = yield from query(entering, connection)
        except AlreadyUnderWay as held:
            return Enqueued(held.run, is_new=False)
        run_id, is_waiting = next(iter(waits_at), None), any(waits_at.values())
    if run_id is None:
        return Enqueued((yield from same_run(new, connection)), is_new=False)
    return Enqueued(run_id, is_new=True, unpublished=() if is_waiting else (new.first,))


def new_run_of(
    settings: Settings,
    found: FoundPipeline,
    value: Any,
    options: RunOptions,
    *,
    run_id: str | None = None,
    now: float | None = None,
) -> NewRun:
    """Check a run's input and options, and make the value that is recorded `now`; raises what `new_run` raises."""
    if options.get("priority") and settings.uses_rabbitmq and settings.worker.queue_type == "quorum":
        what = f"priority {options['priority']!r}: quorum queues of RabbitMQ have no priorities"
        way_out = 'leave it out, or set worker.queue_type = "classic" for clients and workers'
        raise errors.ConfigurationError(what, suggestion=way_out)
    now = time.time() if now is None else now
    deadline_s, tenant, run_id = options.get("deadline_s"), options.get("tenant", ""), run_id or new_run_id(now)
    deadline = deadline_in(deadline_s, now)
    own, background = options.get("limits"), settings.background_tasks.limits()
    limits = in_force(settings.budgets, found.plan, own, run=run_id, tenant=tenant, background=background)
    admission = admission_options(options)
    gates = gates_of(settings.admission, admission, plan=found.plan, tenant=tenant, value=value, now=now)
    if deadline_s is not None and (late := next((gate for gate in gates if gate.wait_s >= deadline_s), None)):
        what = f"it would expire before it begins: `deadline_s` is {deadline_s:g}, and it waits {late.wait_s:g} s"
        way_out = "give it a later deadline; it counts from now, not from the run's beginning"
        raise errors.ConfigurationError(what, suggestion=way_out)
    order = Order(
        run_id,
        context=found.context if options.get("context") is None else options["context"],
        context_model=found.context_model,
        idempotency_key=options.get("idempotency_key"),
        queue=options.get("queue") or settings.worker.attempts_queue,
        priority=options.get("priority"),
        tenant=tenant,
        deadline=deadline,
        limits=limits,
        metadata=options.get("metadata") or {},
        trace_parent=options.get("trace_parent") or current_trace_parent(),
        aros=settings.aros.table(),
        settings=RunSettings.of(settings, _streams(settings, found, options.get("stream"))).table(),
        gates=gates,
        key_marks=settings.key_marks(),
    )
    size, allowed, joins = settings.limits, settings.allowed_imports, settings.worker.control_queue
    return new_run(found.plan, found.reference, value, order, size=size, allowed=allowed, control_queue=joins)


def _streams(settings: Settings, found: FoundPipeline, wanted: bool | None) -> Streams:  # noqa: FBT001 - an option
    """Return what of a run is streamed; raises ConfigurationError for any other value, and where there is no Redis for it."""
    if not isinstance(wanted, bool | None):
        raise errors.ConfigurationError(f"`stream` must be True, False or None, got {wanted!r:.80}")
    stream: Streams = found.stream if wanted is None else "all" if wanted else ""
    if stream and not settings.has_redis:
        what = f"stream=True: {found.reference} cannot be streamed, for streams are in Redis, and there is none"
        way_out = "set result_backend_url to a Redis for clients and workers, or leave `stream` out"
        raise errors.ConfigurationError(what, suggestion=way_out)
    return stream


def admission_options(options: RunOptions) -> AdmissionOptions:
    given = {each.name: options[each.name] for each in fields(AdmissionOptions) if options.get(each.name) is not None}  # type: ignore[literal-required]
    return AdmissionOptions(**given)


def publish(envelopes: Sequence[Envelope], *, has_grace: bool = False) -> Operation[None]:
    """Publish rows, and mark them before a sweep publishes them too: a grace leaves time to mark them together with others."""
    before, keys = time.monotonic(), [envelope.key for envelope in envelopes]
    if not (envelopes and (yield effects.Publish(envelopes))):
        return
    if has_grace:
        yield effects.MarkSent(keys, before)
    else:
        yield from query(requests.mark_sent(dict.fromkeys(keys, time.monotonic() - before)))


def record_of(run_id: str) -> Operation[RunRecord]:
    """Read a run; raises RunNotFound."""
    run = yield from query(requests.run(run_id))
    if run is None:
        raise requests.not_found(run_id)
    return run


def status_of(run_id: str) -> Operation[str]:
    """Read a run's status; raises RunNotFound."""
    found = yield from query(requests.statuses([run_id]))
    if run_id not in found:
        raise requests.not_found(run_id)
    return found[run_id]


def wait_for(
    settings: Settings,
    run_id: str,
    timeout: float | None,
    *,
    through_pauses: bool = True,
    first_look_s: float = FIRST_LOOK_S,
) -> Operation[RunRecord]:
    """Wait until a run has ended, or pauses unless `through_pauses`; return its row."""
    until = None if timeout is None else time.monotonic() + timeout
    look_s, reported = first_look_s, None
    waits = [each for each in LIVE_RUN if through_pauses or each != "paused"]
    run = yield from record_of(run_id)
    while run.status in waits:
        left = look_s if until is None else min(look_s, until - time.monotonic())
        if left <= 0:
            raise (yield from timed_out(settings, run, timeout or 0.0))
        began = time.monotonic()
        yield AwaitRun(run_id, waits, left)
        with suppress(errors.ServiceUnreachable):  # Postgres was there before: it may only be restarting
            run = yield from record_of(run_id)
            if run.status in waits and time.monotonic() - began >= look_s:
                look_s = LOOK_AGAIN_S
                found = yield from hold(settings, run)
                if found is not None and found.key != reported:
                    logger.warning("run %s makes no progress: %s", run_id, found)
                reported = None if found is None else found.key
    return run


def timed_out(settings: Settings, run: RunRecord, timeout: float) -> Operation[errors.WaitTimedOut]:
    """Return the error for a wait that timed out: what holds the run, and a suggestion."""
    found = None
    with suppress(errors.ServiceUnreachable):
        found = yield from hold(settings, run)
    how = "it continues" if found is None else found.why
    way_out = f"`flujo lens trace {run.id}` shows its progress" if found is None else found.way_out
    return errors.WaitTimedOut(f"run {run.id} is still {run.status} after {timeout:g} s; {how}", suggestion=way_out)


def look_at(run_id: str, seconds: float) -> Operation[RunRecord]:
    """Wait until a run has ended or the timeout is over, and read it."""
    yield AwaitRun(run_id, LIVE_RUN, seconds)
    return (yield from record_of(run_id))


def peek_at(settings: Settings, run_id: str) -> Operation[PipelineResult]:
    """Read a run's result so far."""
    return (yield from result_of(settings, (yield from record_of(run_id))))


def result_of(settings: Settings, run: RunRecord) -> Operation[PipelineResult]:
    """Read the result so far of a run whose row was read."""
    attempts, scopes = yield from _rows_of(run.id)
    wanted = references(run, attempts, scopes)
    blobs: Mapping[str, Packed] = (yield from query(requests.blobs(wanted))) if wanted else {}
    approvals = (yield from open_questions(settings, run.id)) if run.status == "paused" else []
    return read_result(
        run,
        attempts,
        scopes,
        questions=approvals,
        resolve=Resolver(settings.allowed_imports),
        fetch=lambda digests: {each: blobs[each] for each in digests},
    )


def open_questions(settings: Settings, run_id: str) -> Operation[list[Approval]]:
    """Read the open questions of a run and its child runs, with tokens if a key to sign them is configured."""
    approvals = yield from query(requests.questions(run_id))
    return signed([each for each in approvals if each.state == OPEN], settings.keys())


def trace_of(settings: Settings, run_id: str) -> Operation[TraceNode]:
    run = yield from record_of(run_id)
    attempts, scopes = yield from _rows_of(run_id)
    events = yield from _events_of(run_id)
    code = yield from query(requests.code(run_id))
    stored = yield from query(plan_requests.plan(run.fingerprint))
    options = options_of_attempts(stored.plan, run, attempts)
    return build_trace(run, attempts, scopes, events, hidden=settings.log.redact, code=code, options=options)


def cancel(
    settings: Settings, run_id: str, *, actor: str | None, reason: str | None, timeout: float
) -> Operation[bool]:
    """Request a cancel, and wait until it is acknowledged; return whether the run ended as cancelled."""
    yield from status_of(run_id)
    if not (yield from query(requests.cancel(run_id, actor=actor, reason=reason))):
        return (yield from status_of(run_id)) == "cancelled"
    yield effects.AskBroker(lambda post: post.request_sweep())
    run = yield from wait_for(settings, run_id, timeout)
    return run.status == "cancelled"


def next_events(run_id: str, after: str | None) -> Operation[list[EventRecord]]:
    """Wait for more events of a run, and return them; an empty list means that it has ended and has no more."""
    pause = FIRST_POLL_S
    page = yield from query(requests.events(run_id, after=after))
    while not page:
        with suppress(errors.ServiceUnreachable):  # Postgres was there before: it may only be restarting
            status = yield from status_of(run_id)  # before the page, which then has all events up to this status
            page = yield from query(requests.events(run_id, after=after))
            if status not in LIVE_RUN:
                break
        if not page:
            yield effects.Delay(pause)
            pause = min(pause * 1.5, SLOWEST_POLL_S)
    return page


def health(settings: Settings, question: HealthQuery) -> Operation[HealthReport]:
    """Make the report of a health check; a broker that does not answer is reported in it."""
    aros = yield from query(checkup.aros(question))
    machine = yield from query(checkup.machine(question, settings.health, settings.runs.on_change))
    own = (settings.worker.attempts_queue, settings.worker.control_queue)
    try:
        messages = yield effects.AskBroker(lambda post: post.broker.depths(sorted({*own, *machine.queues})))
        refused: Refused = yield effects.AskBroker(lambda post: post.broker.refused())
        depths = Depths.of(messages, refused.reasons, refused.last_at, now=time.time())
    except errors.ServiceUnreachable as error:
        depths = Depths(error=error.message)
    return build(question, aros, machine, depths, settings.health)


def _rows_of(run_id: str) -> Operation[tuple[list[AttemptRecord], list[ScopeRecord]]]:
    """Read attempts and scopes. Scopes last: rows are only added, so each attempt's scope is among them."""
    attempts = yield from query(requests.attempts(run_id))
    scopes = yield from query(requests.scopes(run_id))
    return attempts, scopes


def _events_of(run_id: str) -> Operation[list[EventRecord]]:
    events: list[EventRecord] = []
    while True:
        after = events[-1].cursor if events else None
        page = yield from query(requests.events(run_id, after=after, limit=EVENTS_AT_ONCE, settled=False))
        events += page
        if len(page) < EVENTS_AT_ONCE:
            return events


def find_pipeline(
    settings: Settings, pipeline: str | Pipeline | Step, *, has_context: bool
) -> Operation[FoundPipeline]:
    """Find a pipeline and check it; raises PipelineError or MissingAgentError, which list everything wrong with it."""
    if isinstance(pipeline, str) and is_file(bare(pipeline)):
        loaded = Pipeline.from_yaml_file(bare(pipeline), allowed=settings.allowed_imports)
        pipeline = with_reference_options(loaded, pipeline)
    elif isinstance(pipeline, Pipeline) and pipeline.blueprint is not None:
        _check_unchanged(settings, pipeline)
    if isinstance(pipeline, str):
        try:
            live = load_pipeline(pipeline, allowed=settings.allowed_imports)
        except errors.PipelineError as error:
            if error.error_code != "UNKNOWN_REFERENCE":
                raise
            plan = yield from query(requests.latest_plan(pipeline))  # it is stored if the pipeline was enqueued before
            if plan is None:
                raise
            return FoundPipeline(plan, pipeline, None)
        reference = pipeline
    else:
        reference = reference_to(pipeline)
        live = pipeline if isinstance(pipeline, Pipeline) else Pipeline.from_step(pipeline)
    has_context = has_context or live.context_model is not None
    return _compiled(live, reference, settings.allowed_imports, has_context=has_context)


_compiled_before: WeakKeyDictionary[Pipeline, dict[tuple[object, ...], FoundPipeline]] = WeakKeyDictionary()
"""What was compiled, as long as the pipeline exists. Pipelines are frozen, and workers too read a module's pipeline once per process."""


def _compiled(live: Pipeline, reference: str, allowed: Sequence[str], *, has_context: bool) -> FoundPipeline:
    """Check and compile a pipeline, once for each way it is enqueued."""
    known, key = _compiled_before.setdefault(live, {}), (reference, tuple(allowed), has_context)
    if key not in known:
        check(live, allowed=allowed, has_context=has_context)
        plan = compile_plan(live, default_name=default_name(reference))
        stream: Streams = "all" if live.stream else "steps" if any(step.config.stream for _, step in walk(live)) else ""
        known[key] = FoundPipeline(plan, reference, live.context_model, getattr(live, "arguments", None), stream)
    return known[key]


def _check_unchanged(settings: Settings, pipeline: Pipeline) -> None:
    """Raise PipelineError if a pipeline differs from the blueprint that would be sent for it."""
    reference, text = reference_to(pipeline), str(pipeline.blueprint)
    written = with_reference_options(Pipeline.from_yaml_text(text, allowed=settings.allowed_imports), reference)
    same = [(each.on_body_change, each.context_migrations.keys(), each.stream) for each in (written, pipeline)]
    if compile_plan(written).fingerprint != compile_plan(pipeline).fingerprint or same[0] != same[1]:
        what = "the pipeline was changed after it was read from its blueprint, so workers would build a different one"
        way_out = "change the blueprint; or use replace(pipeline, blueprint=None) and define it in a module"
        raise errors.PipelineError(what, suggestion=way_out)


def same_run(new: NewRun | NewFork, connection: Any = None) -> Operation[str]:
    """Find the run that was recorded under a new run's idempotency key or id; raises IdempotencyConflict if it is other work."""
    key, run_id, tenant = new.idempotency_key, new.first.ticket.run, new.first.ticket.tenant
    taken = yield from query(requests.find_by_id(run_id), connection)
    if taken is not None:
        if taken != (tenant, new.digest):
            what = f"run {run_id} exists, and was enqueued with another pipeline, input, context or tenant"
            raise errors.IdempotencyConflict(what, suggestion="choose another `run_id` for other work")
        return run_id
    standing = None if key is None else (yield from query(requests.find_by_key(tenant, key), connection))
    if standing is None:
        raise NotRecorded(f"run {run_id} was not recorded")
    run_id, first_digest = standing
    if first_digest != new.digest:
        raise key_taken(str(key), run_id)
    return run_id


def key_taken(key: str, run_id: str) -> errors.IdempotencyConflict:
    what = f"idempotency key '{key}' is already used by run {run_id}, which was enqueued with another pipeline, input or context"
    return errors.IdempotencyConflict(what, suggestion="use another key for other work")
