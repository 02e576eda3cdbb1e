"""One attempt and the rate limit of its model: the first call is set aside before the attempt begins, so that no worker waits for long.

In: an attempt's envelope, its step and agent. Out: whether it may begin, and what paces its calls.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from flujo_client.contract.outcome import Event
from flujo_worker.agents.estimate import facts_of
from flujo_worker.agents.factory import service_of
from flujo_worker.domain.budget import BYTES_PER_TOKEN
from flujo_worker.guards.pacing import Pacing
from flujo_worker.guards.rates import RateLimiter, RateRequest

if TYPE_CHECKING:
    from flujo_client.config.models import Cost
    from flujo_client.contract.envelope import Envelope
    from flujo_client.pipeline.step import Step
    from flujo_worker.ports import Ledger
    from flujo_worker.runtime.effects import Effects


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
