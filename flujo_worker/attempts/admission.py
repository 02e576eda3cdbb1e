"""Decide whether a claimed attempt may begin: its step's concurrency limit, its model's circuit breaker and slow-down, then its rate limit.

An attempt that is not admitted is returned to its row with its number, to be published again; it has made no call. It must not decide when
a breaker opens or who has a permit. In: a claimed attempt and its pipeline. Out: whether it may begin; afterwards, reports and released
permits.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from flujo_client.pipeline.limits import scoped_name
from flujo_client.serial import Resolver
from flujo_worker.agents.factory import service_of
from flujo_worker.attempts.claim import performs_step
from flujo_worker.attempts.gates import ModelGate, PermitGate, RateGate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flujo_client.config.manager import Settings
    from flujo_client.config.run_settings import RunSettings
    from flujo_client.contract.limits import Limit
    from flujo_client.pipeline.step import Step
    from flujo_worker.attempts.lease import ActiveAttempt
    from flujo_worker.attempts.outcome import Claimed
    from flujo_worker.changed_code.code_registry import CodeRegistry, LoadedPipeline
    from flujo_worker.coordinator.coordinator import Coordinator
    from flujo_worker.guards.models import CalledModels
    from flujo_worker.guards.pacing import Pacing
    from flujo_worker.guards.rates import RateLimiter
    from flujo_worker.ports import Stores
    from flujo_worker.runtime.attempt_run import ModelCall


class Admission:
    """One attempt at the gates that it has to pass."""

    def __init__(self, permit: PermitGate, model: ModelGate, rate: RateGate | None) -> None:
        self._permit, self._model, self._rate = permit, model, rate

    @property
    def pace(self) -> Pacing | None:
        """Return what paces the attempt's calls of models."""
        return None if self._rate is None else self._rate.pacing

    async def holds_back(self, held: ActiveAttempt) -> bool:
        """Ask; what has to wait is returned to its row. Raises LimitRefusal."""
        if await self._permit.holds_back(held) or await self._model.holds_back(held):
            return True
        return self._rate is not None and await self._rate.holds_back(held)

    async def report(self, calls: Sequence[ModelCall]) -> None:
        """Report the attempt's calls to the models' breakers and slow-downs."""
        await self._model.report(calls)

    async def release(self) -> None:
        """Let others take the attempt's place."""
        if self._rate is not None:
            await self._rate.release()
        await self._permit.release()


class Admissions:
    """Admits the attempts of this process. Without `models` no model is asked, and without `rates` none has a limit."""

    def __init__(
        self,
        stores: Stores,
        coordinator: Coordinator,
        models: CalledModels | None,
        rates: RateLimiter | None,
        catalog: CodeRegistry,
        settings: Settings,
    ) -> None:
        self._stores, self._models, self._catalog, self._effects = stores, models, catalog, coordinator.effects
        self._rates, self._release = rates, coordinator.release_permit
        self._resolve = Resolver(settings.allowed_imports)

    def of(self, claimed: Claimed, entry: LoadedPipeline, own: RunSettings) -> Admission:
        """Return the gates of an attempt; its run's own settings give the tokens that it may need."""
        envelope = claimed.envelope
        step = _step_of(claimed, entry)
        limit = None if step is None else step.limit
        share = partial(self._shared, step, entry.plan.name, envelope.ticket.run)
        permit = PermitGate(self._stores, self._release, self._effects, self._resolve, envelope, limit, share)
        agent = None if step is None or self._models is None else self._agent(step)
        model = ModelGate(self._models, self._stores, envelope, agent, self._effects)
        if self._rates is None or step is None:
            return Admission(permit, model, None)
        rate = RateGate(self._rates, self._stores, self._effects, envelope, step, agent, own.cost)
        return Admission(permit, model, rate)

    def _shared(self, step: Step | None, pipeline: str, run: str, limit: Limit, name: str) -> str:
        """Return the name of a limit with who shares it."""
        model = None
        if step is not None and limit.scope == "provider":
            model = service_of(self._agent(step))
        provider = model.partition(":")[0] if model is not None and ":" in model else None
        return scoped_name(limit, name, pipeline=pipeline, run=run, provider=provider)

    def _agent(self, step: Step) -> Any:
        with suppress(Exception):  # an agent that is not found shows when the attempt needs it
            return self._catalog.agent(step.agent)
        return None


def _step_of(claimed: Claimed, entry: LoadedPipeline) -> Step | None:
    """Return the step that an attempt performs, if any. Rows that do not match the plan fail the attempt when it is performed."""
    if performs_step(claimed.envelope, claimed.reply):
        with suppress(KeyError):
            return entry.steps[entry.node_of(claimed.envelope).path]
    return None
