"""The gates that a claimed attempt passes before it begins: its step's concurrency limit, its model's circuit breaker and rate limit.

The store counts permits, and the guards count calls. In: a claimed attempt, its step and agent. Out: whether it may
begin, and what paces its calls; who is published when its place is free.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from flujo_client.contract.outcome import Event
from flujo_client.errors import FlujoError, NonRetryableError
from flujo_client.pipeline.limited import is_per_value, limit_name
from flujo_client.serial import decode
from flujo_worker.agents.estimate import facts_of
from flujo_worker.agents.factory import service_of
from flujo_worker.domain.breaker import BreakerReport, Counts, Permit, spread
from flujo_worker.domain.budget import BYTES_PER_TOKEN
from flujo_worker.domain.permit import PermitRequest
from flujo_worker.errors import StoreError
from flujo_worker.guards.breakers import BreakerRequest, Breakers
from flujo_worker.guards.pacing import Pacing
from flujo_worker.guards.rates import RateLimiter, RateRequest
from flujo_worker.user_code.question import fetched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flujo_client.config.models import Cost
    from flujo_client.contract.envelope import Envelope
    from flujo_client.contract.limit import Limit
    from flujo_client.pipeline.step import Step
    from flujo_worker.ports import Ledger, Store
    from flujo_worker.runtime.attempt_run import ModelCall
    from flujo_worker.runtime.effects import Effects


logger = logging.getLogger(__name__)


class LimitRefusal(Exception):
    """An attempt fails at its step's limit, before it has begun; `cause` says why."""

    def __init__(self, cause: FlujoError) -> None:
        super().__init__(cause.message)
        self.cause = cause


class PermitGate:
    """One attempt at its step's limit.

    Args:
        store: where permits are counted.
        release: releases a permit, by the attempt's key and the limit's name, and publishes who takes its place.
        effects: how answers are waited for.
        resolve: finds the classes that values are made of.
        envelope: the attempt's.
        limit: the step's; None where it has none.
        share: adds to the limit's name who shares it.
    """

    def __init__(
        self,
        store: Store,
        release: Callable[[str, str], None],
        effects: Effects,
        resolve: Callable[[str], Any],
        envelope: Envelope,
        limit: Limit | None,
        share: Callable[[Limit, str], str],
    ) -> None:
        self._store, self._release, self._effects, self._resolve = store, release, effects, resolve
        self._envelope, self._limit, self._share = envelope, limit, share
        self._name: str | None = None

    async def holds_back(self, fence: int) -> bool:
        """Ask for a permit; without one, the attempt is returned, to be published again when it is its turn.

        Raises:
            LimitRefusal: the name of the limit cannot be filled in, or the limit drops what finds no place.
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
        request = PermitRequest(envelope.key, fence, envelope.step, name, limit.at_once, limit.on_full)
        if not await self._effects.call(self._store.request_permit, request):
            if limit.on_full == "drop":
                raise LimitRefusal(_reached(name, limit.at_once))
            return True
        self._name = name
        return False

    async def release(self) -> None:
        """Let the next attempts begin. If that fails, the sweeper does it."""
        if self._name is None:
            return
        try:
            await self._effects.call(self._release, self._envelope.key, self._name)
        except StoreError as error:
            logger.warning("attempts that wait at limit %s are left to the sweeper: %s", self._name, error)

    async def _fill_name(self, limit: Limit) -> str:
        fill = partial(limit_name, limit, tenant=self._envelope.ticket.tenant)
        if not is_per_value(limit):
            return fill(None, None)
        return await self._effects.call(self._filled, fill)

    def _filled(self, fill: Callable[[Any, Any], str]) -> str:
        envelope = self._envelope
        if envelope.references:
            envelope = envelope.inline(fetched(self._store, envelope.references))
        context = None if envelope.context is None else decode(envelope.context.tree(), resolve=self._resolve)
        return fill(decode(envelope.input.tree(), resolve=self._resolve), context)


def _reached(name: str, at_once: int) -> FlujoError:
    return NonRetryableError(
        f"the limit '{name}' is reached: {at_once} of {at_once} places are taken",
        suggestion="give the step a fallback, or the limit `on_full='queue'` to let it wait",
        code="LIMIT_REACHED",
    )


class BreakerGate:
    """One attempt and the circuit breaker of its model: queried once, before any call; notified of the result of all calls.

    Breakers of other models that the attempt calls, of a plugin's redirect or a precheck's agents, are notified and not queried.

    Args:
        breakers: shared by all workers; None where the project has none.
        ledger: where waits and a breaker's changes of state are recorded.
        envelope: the attempt's.
        agent: its live agent.
        effects: how answers are waited for.
    """

    def __init__(
        self, breakers: Breakers | None, ledger: Ledger, envelope: Envelope, agent: Any, effects: Effects
    ) -> None:
        self._breakers, self._ledger, self._envelope, self._effects = breakers, ledger, envelope, effects
        self._model = None if breakers is None or agent is None else service_of(agent)
        self._permit = Permit()

    async def holds_back(self, fence: int) -> bool:
        """Query the breaker; if it is open, release the attempt, to be published again when it may be tried."""
        if self._breakers is None or self._model is None:
            return False
        self._permit = await self._ask(self._breakers, BreakerRequest(self._model))
        if self._permit.wait_s is None:
            return False
        key, step = self._envelope.key, self._envelope.step
        wait = spread(self._permit.wait_s, self._breakers.rules, f"{key} {fence}")
        data = {"step": step, "model": self._model, "delay_seconds": round(wait, 3)}
        await self._effects.call(self._ledger.defer, key, fence, wait, Event("flujo.breaker.waiting", data, "warning"))
        return True

    async def report(self, calls: Sequence[ModelCall]) -> None:
        """Report the attempt's calls to the breakers; to the one that let it through even if it made no call."""
        if self._breakers is None:
            return
        by_model: dict[str, list[ModelCall]] = (
            {} if self._permit.turn is None or self._model is None else {self._model: []}
        )
        for call in calls:
            by_model.setdefault(call.model, []).append(call)
        for model, its_calls in by_model.items():
            turn = self._permit.turn if model == self._model else None
            report = _report(its_calls, turn, self._breakers.rules.slow_s)
            await self._ask(self._breakers, BreakerRequest(model, report))

    async def _ask(self, breakers: Breakers, request: BreakerRequest) -> Permit:
        """Send a request or a report, and record how that has changed the breaker."""
        permit, turned = await self._effects.together(breakers.answer, request)
        if turned is not None:
            logger.warning("circuit breaker of %s is now %s: %s", request.model, turned.how, turned.figures)
            level = "warning" if turned.how == "opened" else "info"
            event = Event(f"flujo.breaker.{turned.how}", {"model": request.model, **turned.figures}, level)
            run, key = self._envelope.ticket.run, self._envelope.key
            await self._effects.call(self._ledger.note, run, [event], key=key)
        return permit


def _report(calls: Sequence[ModelCall], turn: int | None, slow_s: float) -> BreakerReport:
    """Return what an attempt's calls say of their model. A refused call says nothing of its health: it is as if it had not been made."""
    answered = [call for call in calls if not call.refused]
    slow = sum(call.seconds > slow_s for call in answered)
    counts = Counts(len(answered), sum(call.failed for call in answered), slow)
    return BreakerReport(
        counts, turn, max((each.asked_s for each in answered if each.asked_s is not None), default=None)
    )


class FirstCall(NamedTuple):
    """The facts about an attempt's first call before it begins."""

    step: Step
    agent: Any
    cost: Cost

    def tokens(self, envelope: Envelope) -> int:
        """Estimate its tokens, without rendering its prompt; a call that needs far more asks again."""
        facts = facts_of(self.agent)
        read = facts.instruction_bytes + envelope.input.length + len((envelope.guidance or "").encode())
        written = self.step.config.max_tokens or facts.max_tokens or self.cost.default_output_tokens
        return math.ceil(read / BYTES_PER_TOKEN) + written


class RateGate:
    """One attempt at the rate limit of its model.

    Args:
        limiter: the limits that all workers share.
        ledger: where waits are written down.
        effects: how answers are waited for.
        envelope: the attempt's.
        first: its first call.

    Attributes:
        pacing: what paces the attempt's calls.
    """

    def __init__(
        self, limiter: RateLimiter, ledger: Ledger, effects: Effects, envelope: Envelope, first: FirstCall
    ) -> None:
        self._limiter, self._ledger, self._effects, self._envelope = limiter, ledger, effects, envelope
        self._first = first
        self.pacing = Pacing(limiter, envelope.ticket.tenant)

    async def holds_back(self, fence: int) -> bool:
        """Set the first call aside; if its turn is more than a moment away, the attempt is returned until then."""
        model = service_of(self._first.agent)
        limit = None if model is None else self.pacing.limit_of(model)
        if limit is None:
            return False
        request = RateRequest(limit, self._first.tokens(self._envelope), has_waited=fence > 1)
        answer = await self._effects.together(self._limiter.answer, request)
        if answer.grant is not None:
            self.pacing.put(limit, answer)
            return False
        data = {"step": self._envelope.step, "model": model, "delay_seconds": round(answer.wait_s, 3)}
        waiting = Event("flujo.rate.waiting", data)
        await self._effects.call(self._ledger.defer, self._envelope.key, fence, answer.wait_s, waiting)
        return True

    async def release(self) -> None:
        """Give back what was set aside and not used."""
        if self.pacing.has_unused:
            await self._effects.call(self.pacing.return_unused)
