"""The gates that a claimed attempt passes before it begins: its step's concurrency limit, its model's circuit breaker, slow-down and rate limit.

The store counts permits, and the guards count calls. In: a claimed attempt, its step and agent. Out: whether it may
begin, and what paces its calls; who is published when its place is free.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flujo_client.config.models import Cost
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.limits import Guard, Limit, waits_for
from flujo_client.contract.outcome import Event
from flujo_client.errors import FlujoError, NonRetryableError
from flujo_client.pipeline.limits import is_per_value, limit_name
from flujo_client.pipeline.step import Step
from flujo_client.serial import decode
from flujo_worker.agents.factory import service_of
from flujo_worker.attempts.budget import facts_of
from flujo_worker.attempts.lease import ActiveAttempt
from flujo_worker.domain.breaker import BreakerReport, Counts, spread
from flujo_worker.domain.budget import BYTES_PER_TOKEN
from flujo_worker.domain.called_model import CallReport, ModelPermit
from flujo_worker.domain.permit import PermitRequest
from flujo_worker.errors import RowLocked, StoreError
from flujo_worker.guards.models import CalledModels, ModelRequest
from flujo_worker.guards.pacing import Pacing
from flujo_worker.guards.rates import RateLimiter, RateRequest
from flujo_worker.ports import Stores
from flujo_worker.runtime.attempt_run import ModelCall
from flujo_worker.runtime.effects import Effects, note_lock
from flujo_worker.runtime.question import fetched

logger = logging.getLogger(__name__)

LIMIT_LOCKED_S = 2.0
"""Seconds until an attempt asks again whose limit somebody else has locked."""


class LimitRefusal(Exception):
    """An attempt fails at its step's limit, before it has begun; `cause` says why."""

    def __init__(self, cause: FlujoError) -> None:
        super().__init__(cause.message)
        self.cause = cause


class PermitGate:
    """One attempt at its step's limit.

    `release` takes the attempt's key, its fence and the limit's name, and publishes the attempts that take its place; `share` adds to the name who
    shares the limit.
    """

    def __init__(
        self,
        stores: Stores,
        release: Callable[[str, int, str], None],
        effects: Effects,
        resolve: Callable[[str], Any],
        envelope: Envelope,
        limit: Limit | None,
        share: Callable[[Limit, str], str],
    ) -> None:
        self._stores, self._release, self._effects, self._resolve = stores, release, effects, resolve
        self._envelope, self._limit, self._share = envelope, limit, share
        self._granted: tuple[int, str] | None = None

    async def holds_back(self, held: ActiveAttempt) -> bool:
        """Ask for a permit; without one, the attempt is returned, to be published again when it is its turn.

        Raises LimitRefusal: the name of the limit cannot be filled in, or the limit drops what finds no place.
        """
        limit = self._limit
        if limit is None:
            return False
        try:
            name = self._share(limit, await self._fill_name(limit))
        except StoreError:
            raise
        except FlujoError as error:
            raise LimitRefusal(error) from error
        envelope = self._envelope
        fence = held.fence or 0
        request = PermitRequest(envelope.key, fence, envelope.step, name, limit.at_once, limit.on_full, held.claim_id)
        try:
            is_granted = await self._effects.call(self._stores.limits.request_permit, request)
        except RowLocked:  # the limit's row, perhaps for long: an attempt that waits for it must not hold a slot
            await self._effects.call(note_lock, self._stores, envelope)
            await self._effects.call(
                self._stores.attempts.defer, envelope.key, fence, LIMIT_LOCKED_S, claim_id=held.claim_id
            )
            return True
        if not is_granted:
            if limit.on_full == "drop":
                raise LimitRefusal(_reached(envelope.step, name, limit.at_once))
            return True
        self._granted = fence, name
        return False

    async def release(self) -> None:
        """Let the next attempts begin. If that fails, the sweeper does it."""
        if self._granted is None:
            return
        try:
            await self._effects.call(self._release, self._envelope.key, *self._granted)
        except StoreError as error:
            logger.warning("attempts that wait at limit %s are left to the sweeper: %s", self._granted[1], error)

    async def _fill_name(self, limit: Limit) -> str:
        fill = partial(limit_name, limit, tenant=self._envelope.ticket.tenant)
        if not is_per_value(limit):
            return fill(None, None)
        return await self._effects.call(self._filled, fill)

    def _filled(self, fill: Callable[[Any, Any], str]) -> str:
        envelope = self._envelope
        if envelope.references:
            envelope = envelope.inline(fetched(self._stores.blobs, envelope.references))
        context = None if envelope.context is None else decode(envelope.context.tree(), resolve=self._resolve)
        return fill(decode(envelope.input.tree(), resolve=self._resolve), context)


def _reached(step: str, name: str, at_once: int) -> FlujoError:
    return NonRetryableError(
        f"the limit '{name}' is reached: {at_once} of {at_once} places are taken",
        suggestion="give the step a fallback, or the limit `on_full='queue'` to let it wait",
        code="LIMIT_REACHED",
        details={"step": step},
    )


class ModelGate:
    """One attempt and the model of its agent: queried once, before any call; notified of the result of all calls.

    Other models that the attempt calls, of a plugin's redirect or a precheck's agents, are notified and not queried.
    """

    def __init__(
        self, models: CalledModels | None, stores: Stores, envelope: Envelope, agent: Any, effects: Effects
    ) -> None:
        self._models, self._stores, self._envelope, self._effects = models, stores, envelope, effects
        self._model = None if models is None or agent is None else service_of(agent)
        self._permit = ModelPermit()

    async def holds_back(self, held: ActiveAttempt) -> bool:
        """Query the model; if it may not be called now, release the attempt, to be published again when it may be tried."""
        if self._models is None or self._model is None:
            return False
        self._permit = await self._ask(self._models, ModelRequest(self._model, has_waited=(held.fence or 0) > 1))
        guard, wait_s = self._permit.waits_for, self._permit.wait_s
        if guard is None:
            return False
        if guard == "breaker":
            recovery_s = self._models.settings(self._model).recovery_s
            wait_s = spread(wait_s, recovery_s, f"{self._envelope.key} {held.fence}")
        await _defer(self._effects, self._stores, self._envelope, held, wait_s, guard, self._model)
        return True

    async def report(self, calls: Sequence[ModelCall]) -> None:
        """Report the attempt's calls; to the model whose breaker let it through even if it made no call."""
        if self._models is None:
            return
        by_model: dict[str, list[ModelCall]] = (
            {} if self._permit.turn is None or self._model is None else {self._model: []}
        )
        for call in calls:
            by_model.setdefault(call.model, []).append(call)
        for model, its_calls in by_model.items():
            turn = self._permit.turn if model == self._model else None
            report = _report(its_calls, turn, self._models.settings(model).slow_s)
            await self._ask(self._models, ModelRequest(model, report))

    async def _ask(self, models: CalledModels, request: ModelRequest) -> ModelPermit:
        """Send a request or a report, and record how that has changed the model's state."""
        permit, event = await self._effects.together(models.answer, request)
        if event is not None:
            logger.warning("%s: %s", event.name, event.data)
            run, key = self._envelope.ticket.run, self._envelope.key
            await self._effects.call(self._stores.records.note, run, [event], key=key)
        return permit


async def _defer(
    effects: Effects, stores: Stores, envelope: Envelope, held: ActiveAttempt, wait_s: float, guard: Guard, model: str
) -> None:
    """Return an attempt to its row until its model may be called."""
    data = {"step": envelope.step, "model": model, "delay_seconds": round(wait_s, 3)}
    waiting = Event(f"flujo.{guard}.waiting", data, "warning" if guard == "breaker" else "info")
    options = {"claim_id": held.claim_id, "waits_for": waits_for(guard, model)}
    await effects.call(stores.attempts.defer, envelope.key, held.fence or 0, wait_s, waiting, **options)


def _report(calls: Sequence[ModelCall], turn: int | None, slow_s: float) -> CallReport:
    """Return what an attempt's calls say of their model. A refused call says nothing of its health."""
    answered, refused = ([call for call in calls if call.refused is wanted] for wanted in (False, True))
    slow = sum(call.seconds > slow_s for call in answered)
    counts = Counts(len(answered), sum(call.failed for call in answered), slow)
    return CallReport(BreakerReport(counts, turn, _asked_s(answered)), len(refused), _asked_s(refused))


def _asked_s(calls: Sequence[ModelCall]) -> float | None:
    return max((call.asked_s for call in calls if call.asked_s is not None), default=None)


class RateGate:
    """One attempt at the rate limit of its model."""

    def __init__(
        self,
        limiter: RateLimiter,
        stores: Stores,
        effects: Effects,
        envelope: Envelope,
        step: Step,
        agent: Any,
        cost: Cost,
    ) -> None:
        self._limiter, self._stores, self._effects, self._envelope = limiter, stores, effects, envelope
        self._step, self._agent, self._cost = step, agent, cost
        self.pacing = Pacing(limiter, envelope.ticket.tenant)

    async def holds_back(self, held: ActiveAttempt) -> bool:
        """Set the first call aside; if its turn is more than a moment away, the attempt is returned until then."""
        model = service_of(self._agent)
        limit = None if model is None else self.pacing.limit_of(model)
        if model is None or limit is None:
            return False
        request = RateRequest(limit, self._expected_tokens(), has_waited=(held.fence or 0) > 1)
        answer = await self._effects.together(self._limiter.answer, request)
        if answer.grant is not None:
            self.pacing.put(limit, answer)
            return False
        await _defer(self._effects, self._stores, self._envelope, held, answer.wait_s, "rate", model)
        return True

    def _expected_tokens(self) -> int:
        """Estimate the tokens of the first call, without rendering its prompt; a call that needs far more asks again."""
        facts, envelope = facts_of(self._agent), self._envelope
        read = facts.instruction_bytes + envelope.input.length + len((envelope.guidance or "").encode())
        written = self._step.config.max_tokens or facts.max_tokens or self._cost.default_output_tokens
        return math.ceil(read / BYTES_PER_TOKEN) + written

    async def release(self) -> None:
        """Give back what was set aside and not used."""
        if self.pacing.has_unused:
            await self._effects.call(self.pacing.return_unused)
