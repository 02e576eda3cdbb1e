"""Decide whether a claimed attempt may begin: its step's concurrency limit, its model's circuit breaker and slow-down, then its rate limit.

An attempt that is not admitted is returned to its row with its number, to be published again; it has made no call. It must not decide when
a breaker opens or who has a permit. In: a claimed attempt and its pipeline. Out: whether it may begin; afterwards, reports and released
permits.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from flujo_client.serial import Resolver
from flujo_worker.agents.factory import service_of
from flujo_worker.attempts.attempt import Admission
from flujo_worker.attempts.claim import performs_step
from flujo_worker.attempts.gates import ModelGate, PermitGate, RateGate

if TYPE_CHECKING:
    from collections.abc import Callable

    from flujo_client.config.manager import Settings
    from flujo_client.config.models import Cost
    from flujo_client.pipeline.step import Step
    from flujo_worker.attempts.attempt import StagedAttempt
    from flujo_worker.changed_code.code_registry import CodeRegistry
    from flujo_worker.coordinator.coordinator import Coordinator
    from flujo_worker.guards.models import CalledModels
    from flujo_worker.guards.pacing import Pacing
    from flujo_worker.guards.rates import RateLimiter
    from flujo_worker.ports import Stores


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
        self._catalog, effects = catalog, coordinator.effects
        resolve = Resolver(settings.allowed_imports)
        self._permits = PermitGate(stores, coordinator.release_permit, effects, resolve)
        self._models = None if models is None else ModelGate(models, stores, effects)
        self._rates = None if rates is None else RateGate(rates, stores, effects)

    async def holds_back(self, attempt: StagedAttempt, cost: Cost) -> bool:
        """Pass the gates that its step has; an attempt that has to wait is returned to its row.

        Args:
            attempt: one that is loaded.
            cost: its run's settings, which give the tokens that it may need.

        Raises LimitRefusal: its limit lets it begin never.
        """
        step = _step_of(attempt)
        if step is None or (attempt.needs is not None and not attempt.needs.is_gated):
            return False
        agent = self._agent(step)
        model = None if self._models is None or agent is None else service_of(agent)
        attempt.admission = admission = Admission(step, agent, model)
        return (
            await self._permits.holds_back(attempt, admission)
            or (self._models is not None and await self._models.holds_back(attempt, admission))
            or (self._rates is not None and await self._rates.holds_back(attempt, admission, cost))
        )

    def pace_of(self, attempt: StagedAttempt) -> Callable[[], Pacing] | None:
        """Return what makes the pace of an attempt's calls of models; None without limits."""
        tenant = attempt.given.ticket.tenant  # not the attempt: that would be a circle
        return None if self._rates is None else partial(self._rates.pacing, tenant, attempt.admission)

    async def report(self, attempt: StagedAttempt) -> None:
        """Report the attempt's calls to the models' breakers and slow-downs, also of models that no gate was asked for."""
        if self._models is not None:
            await self._models.report(attempt)

    async def release(self, attempt: StagedAttempt) -> None:
        """Let others take the attempt's place."""
        if (admission := attempt.admission) is None:
            return
        if self._rates is not None:
            await self._rates.release(admission)
        await self._permits.release(attempt, admission)

    def _agent(self, step: Step) -> Any:
        with suppress(Exception):  # an agent that is not found shows when the attempt needs it
            return self._catalog.agent(step.agent)
        return None


def _step_of(attempt: StagedAttempt) -> Step | None:
    """Return the step that an attempt performs, if any. Rows that do not match the plan fail the attempt when it is performed."""
    if attempt.needs is not None:
        return attempt.needs.step
    if performs_step(attempt.given, attempt.reply):
        with suppress(KeyError):
            return attempt.entry.steps[attempt.entry.node_of(attempt.given).path]
    return None
