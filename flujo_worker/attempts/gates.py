"""The gates that a claimed attempt passes before it begins: its step's concurrency limit, its model's circuit breaker, slow-down and rate limit.

There is one of each in a process. The store counts permits, and the guards count calls.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from flujo_client.config.models import Cost
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.limits import Guard, Limit, waits_for
from flujo_client.contract.outcome import Event
from flujo_client.errors import FlujoError, NonRetryableError
from flujo_client.pipeline.limits import is_per_value, limit_name, scoped_name
from flujo_client.pipeline.step import Step
from flujo_client.serial import decode
from flujo_worker.agents.factory import service_of
from flujo_worker.attempts.attempt import Admission, AttemptServices, StagedAttempt
from flujo_worker.attempts.budget import facts_of
from flujo_worker.domain.breaker import BreakerReport, Counts, spread
from flujo_worker.domain.budget import BYTES_PER_TOKEN
from flujo_worker.domain.called_model import CallReport, ModelPermit
from flujo_worker.domain.permit import PermitRequest
from flujo_worker.errors import RowLocked, StoreError
from flujo_worker.guards.models import CalledModels, ModelRequest
from flujo_worker.guards.rates import Pacing, RateLimiter, RateRequest
from flujo_worker.ports import Stores
from flujo_worker.runtime.attempt_run import ModelCall
from flujo_worker.runtime.effects import Effects, note_lock
from flujo_worker.runtime.question import fetched

logger = logging.getLogger(__name__)

LIMIT_LOCKED_S = 2.0
"""Seconds until an attempt asks again after another transaction had locked the limit."""


class LimitRefusal(Exception):
    """An attempt fails at its step's limit, before it has begun; `cause` says why."""

    def __init__(self, cause: FlujoError) -> None:
        super().__init__(cause.message)
        self.cause = cause


class PermitGate:
    """The limits of steps."""

    def __init__(self, services: AttemptServices) -> None:
        self._stores, self._effects, self._resolve = services.stores, services.effects, services.resolve
        self._release = services.coordinator.release_permit

    async def holds_back(self, attempt: StagedAttempt, admission: Admission) -> bool:
        """Ask for a permit; without one, the attempt is published again when it is its turn. Raises LimitRefusal: the limit drops it, or its name is invalid."""
        limit = admission.step.limit
        if limit is None:
            return False
        envelope, active, call = attempt.envelope, attempt.active, self._effects.call
        try:
            name = _shared(attempt, admission, limit, await self._fill_name(limit, envelope))
        except StoreError:
            raise
        except FlujoError as error:
            raise LimitRefusal(error) from error
        fence = active.fence or 0
        request = PermitRequest(envelope.key, fence, envelope.step, name, limit.at_once, limit.on_full, active.claim_id)
        try:
            is_granted = await call(self._stores.limits.request_permit, request)
        except RowLocked:  # the limit's row, perhaps for long: an attempt that waits for it must not hold a slot
            await call(note_lock, self._stores, envelope)
            await call(self._stores.attempts.defer, active.claim, LIMIT_LOCKED_S)
            return True
        if not is_granted:
            if limit.on_full == "drop":
                raise LimitRefusal(_reached(envelope.step, name, limit.at_once))
            return True
        admission.granted = fence, name
        return False

    async def release(self, attempt: StagedAttempt, admission: Admission) -> None:
        """Let the next attempts begin. If that fails, the sweeper does it."""
        if admission.granted is None:
            return
        try:
            await self._effects.call(self._release, attempt.active.key, *admission.granted)
        except StoreError as error:
            name = admission.granted[1]
            logger.warning("attempts that wait at limit %s are left to the sweeper: %s", name, error)

    async def _fill_name(self, limit: Limit, envelope: Envelope) -> str:
        fill = partial(limit_name, limit, tenant=envelope.ticket.tenant)
        return await self._effects.call(self._filled, fill, envelope) if is_per_value(limit) else fill(None, None)

    def _filled(self, fill: Callable[[Any, Any], str], envelope: Envelope) -> str:
        if envelope.references:
            envelope = envelope.inline(fetched(self._stores.blobs, envelope.references))
        context = None if envelope.context is None else decode(envelope.context.tree(), resolve=self._resolve)
        return fill(decode(envelope.input.tree(), resolve=self._resolve), context)


def _shared(attempt: StagedAttempt, admission: Admission, limit: Limit, name: str) -> str:
    model = admission.model if limit.scope == "provider" else None
    provider = model.partition(":")[0] if model is not None and ":" in model else None
    run, pipeline = attempt.message.ticket.run, attempt.entry.plan.name
    return scoped_name(limit, name, pipeline=pipeline, run=run, provider=provider)


def _reached(step: str, name: str, at_once: int) -> FlujoError:
    what = f"the limit '{name}' is reached: {at_once} of {at_once} places are taken"
    way_out = "give the step a fallback, or the limit `on_full='queue'` to let it wait"
    return NonRetryableError(what, suggestion=way_out, code="LIMIT_REACHED", details={"step": step})


class ModelGate:
    """The circuit breakers and slow-downs of models. An attempt asks its agent's model before its calls, and reports to each model that it has called."""

    def __init__(self, models: CalledModels, stores: Stores, effects: Effects) -> None:
        self._models, self._stores, self._effects = models, stores, effects

    async def holds_back(self, attempt: StagedAttempt, admission: Admission) -> bool:
        """Query the model; if it may not be called now, release the attempt, to be published again when it may be tried."""
        model = admission.model
        if model is None:
            return False
        admission.turn = await self._ask(attempt, ModelRequest(model, has_waited=attempt.has_waited))
        guard, wait_s = admission.turn.waits_for, admission.turn.wait_s
        if guard is None:
            return False
        if guard == "breaker":
            recovery_s = self._models.settings(model).recovery_s
            wait_s = spread(wait_s, recovery_s, f"{attempt.active.key} {attempt.active.fence}")
        await _defer(self._effects, self._stores, attempt, wait_s, guard, model)
        return True

    async def report(self, attempt: StagedAttempt) -> None:
        """Report the attempt's calls; to the model whose breaker let it through even if it made no call."""
        own, turn = None, None
        if attempt.admission is not None:
            own, turn = attempt.admission.model, attempt.admission.turn.turn
        by_model: dict[str, list[ModelCall]] = {} if turn is None or own is None else {own: []}
        for call in attempt.run.calls:
            by_model.setdefault(call.model, []).append(call)
        for model, its_calls in by_model.items():
            report = _report(its_calls, turn if model == own else None, self._models.settings(model).slow_s)
            await self._ask(attempt, ModelRequest(model, report))

    async def _ask(self, attempt: StagedAttempt, request: ModelRequest) -> ModelPermit:
        """Send a request or a report, and record how that has changed the model's state."""
        permit, event = await self._effects.together(self._models.answer, request)
        if event is not None:
            logger.warning("%s: %s", event.name, event.data)
            note, run = self._stores.records.note, attempt.message.ticket.run
            await self._effects.call(note, run, [event], key=attempt.active.key)
        return permit


async def _defer(
    effects: Effects, stores: Stores, attempt: StagedAttempt, wait_s: float, guard: Guard, model: str
) -> None:
    data = {"step": attempt.message.step, "model": model, "delay_seconds": round(wait_s, 3)}
    waiting = Event(f"flujo.{guard}.waiting", data, "warning" if guard == "breaker" else "info")
    waits = waits_for(guard, model)
    await effects.call(stores.attempts.defer, attempt.active.claim, wait_s, waiting, waits_for=waits)


def _report(calls: Sequence[ModelCall], turn: int | None, slow_s: float) -> CallReport:
    """Summarize an attempt's calls of one model. Refused calls are no evidence of its health."""
    answered, refused = ([call for call in calls if call.refused is wanted] for wanted in (False, True))
    slow = sum(call.seconds > slow_s for call in answered)
    counts = Counts(len(answered), sum(call.failed for call in answered), slow)
    return CallReport(BreakerReport(counts, turn, _asked_s(answered)), len(refused), _asked_s(refused))


def _asked_s(calls: Sequence[ModelCall]) -> float | None:
    return max((call.asked_s for call in calls if call.asked_s is not None), default=None)


class RateGate:
    """The rate limits of models."""

    def __init__(self, limiter: RateLimiter, stores: Stores, effects: Effects) -> None:
        self._limiter, self._stores, self._effects = limiter, stores, effects

    def pacing(self, tenant: str, admission: Admission | None) -> Pacing:
        """Return the pacing of an attempt's model calls, with the grant of its gate if it has passed one."""
        return (admission and admission.pacing) or Pacing(self._limiter, tenant)

    async def holds_back(self, attempt: StagedAttempt, admission: Admission, cost: Cost) -> bool:
        """Reserve the first call. If its turn is not near, release the attempt until then."""
        admission.pacing = pacing = self.pacing(attempt.message.ticket.tenant, None)
        model = admission.model
        limit = None if model is None else pacing.limit_of(model)
        if model is None or limit is None:
            return False
        request = RateRequest(limit, _expected_tokens(attempt.envelope, admission, cost), has_waited=attempt.has_waited)
        answer = await self._effects.together(self._limiter.answer, request)
        if answer.grant is not None:
            pacing.put(limit, answer)
            return False
        await _defer(self._effects, self._stores, attempt, answer.wait_s, "rate", model)
        return True

    async def release(self, admission: Admission) -> None:
        """Return an unused grant."""
        if admission.pacing is not None and admission.pacing.has_unused:
            await self._effects.call(admission.pacing.return_unused)


def _expected_tokens(envelope: Envelope, admission: Admission, cost: Cost) -> int:
    """Estimate the tokens of the first call, without rendering its prompt; a call that needs far more asks again."""
    facts = facts_of(admission.agent)
    read = facts.instruction_bytes + envelope.input.length + len((envelope.guidance or "").encode())
    written = admission.step.config.max_tokens or facts.max_tokens or cost.default_output_tokens
    return math.ceil(read / BYTES_PER_TOKEN) + written


class Admissions:
    """Admits the attempts of this process. Without `models` there are no circuit breakers, without `rates` no rate limits."""

    def __init__(self, services: AttemptServices, models: CalledModels | None, rates: RateLimiter | None) -> None:
        stores, effects, self._catalog = services.stores, services.effects, services.hooks.catalog
        self._permits = PermitGate(services)
        self._models = None if models is None else ModelGate(models, stores, effects)
        self.rates = None if rates is None else RateGate(rates, stores, effects)

    async def holds_back(self, attempt: StagedAttempt, cost: Cost) -> bool:
        """Pass the gates of an attempt's step. An attempt that has to wait is released, to be published again.

        `cost`, of its run's settings, gives the tokens that it may need. Raises LimitRefusal: its limit drops it.
        """
        step = _step_of(attempt)
        if step is None:
            return False
        agent = None
        with suppress(Exception):  # an agent that is not found shows when the attempt needs it
            agent = self._catalog.agent(step.agent)
        attempt.admission = admission = Admission(step, agent, None if agent is None else service_of(agent))
        if await self._permits.holds_back(attempt, admission):
            return True
        if self._models is not None and await self._models.holds_back(attempt, admission):
            return True
        return self.rates is not None and await self.rates.holds_back(attempt, admission, cost)

    async def report(self, attempt: StagedAttempt) -> None:
        """Report the attempt's calls to the breakers and slow-downs of all models that it has called."""
        if self._models is not None:
            await self._models.report(attempt)

    async def release(self, attempt: StagedAttempt, admission: Admission) -> None:
        """Let others take the attempt's place."""
        if self.rates is not None:
            await self.rates.release(admission)
        await self._permits.release(attempt, admission)


def _step_of(attempt: StagedAttempt) -> Step | None:
    """Return the step that an attempt performs. Rows that do not match the plan fail the attempt when it is performed."""
    if attempt.needs is not None:
        return attempt.needs.step
    with suppress(KeyError):
        return attempt.entry.steps[attempt.entry.node_of(attempt.message).path]
    return None
