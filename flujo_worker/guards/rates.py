"""The rate limits of all models: as all attempts ask them, and as one attempt's calls wait for their turns. The decisions are in `domain/rate.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from flujo_client.config.models import ModelRate
from flujo_client.frozen import frozen
from flujo_worker.domain import rate as machine
from flujo_worker.domain.rate import NOT_SAID, Grant, Left, RateAnswer, RateBucket, RateRules
from flujo_worker.guards.cells import Cells, answered_in_order
from flujo_worker.guards.live import LiveGuards
from flujo_worker.runtime.attempt_run import in_thread


@frozen
class LimitedModel:
    """A model's limit: what its bucket is stored under, and its rules."""

    name: str
    rules: RateRules


class RateRequest(NamedTuple):
    """Asks to make a call of that many tokens. `has_waited`: it was sent away before."""

    limit: LimitedModel
    tokens: int
    has_waited: bool = False


class RateLimiter:
    """One bucket for each limit."""

    def __init__(self, cells: Cells[RateBucket], live: LiveGuards) -> None:
        self._cells, self._live = cells, live

    def limit_of(self, model: str, tenant: str) -> LimitedModel | None:
        """Find the limit of a model by the known settings; None if it has none."""
        found = self._live.known.limit(model)
        if found is None:
            return None
        own = found.settings
        rules = RateRules(own.requests_per_minute, own.tokens_per_minute, own.slow_start_s)
        return LimitedModel(_bucket(own, found.pattern, model, tenant), rules)

    def answer(self, requests: Sequence[RateRequest]) -> list[RateAnswer]:
        """Answer requests as if each came after the one before it. All of one limit change its bucket at once."""

        def answer(bucket: RateBucket, now: float, asked: RateRequest) -> tuple[RateBucket, RateAnswer]:
            return machine.reserve(bucket, asked.limit.rules, now, asked.tokens, has_waited=asked.has_waited)

        def free(asked: RateRequest) -> RateAnswer:
            return RateAnswer(grant=Grant(asked.tokens, 0.0))

        return answered_in_order(self._cells, requests, lambda each: each.limit.name, answer, free)

    def settle(self, limit: LimitedModel, grant: Grant, tokens: int, left: Left = NOT_SAID) -> None:
        """Replace the tokens that were set aside for a call by those that it has used; `left` is what the provider then reported."""

        def act(bucket: RateBucket, now: float) -> tuple[RateBucket, None]:
            settled = machine.settle(bucket, limit.rules, now, grant, tokens)
            return machine.observe(settled, limit.rules, now, left), None

        self._cells.change(limit.name, act)


def _bucket(own: ModelRate, pattern: str, model: str, tenant: str) -> str:
    """Return what a bucket is stored under: its calls share one limit."""
    name = model if "model" in own.per else pattern
    return f"{name}@{tenant}" if "tenant" in own.per else name


ROUGH: Final = 1.25
"""A call that needs so many times its reserved tokens asks again."""


class Pacing:
    """Paces an attempt's calls."""

    def __init__(self, limiter: RateLimiter, tenant: str) -> None:
        self._limiter, self._tenant = limiter, tenant
        self._first: tuple[LimitedModel, Grant, float] | None = None

    @property
    def has_unused(self) -> bool:
        """Return whether something is set aside for a call that was not made."""
        return self._first is not None

    def put(self, limit: LimitedModel, answer: RateAnswer) -> None:
        """Store what was set aside for the attempt's first call before it began."""
        if answer.grant is not None:
            self._first = limit, answer.grant, time.monotonic() + answer.wait_s

    def limit_of(self, model: str) -> LimitedModel | None:
        return self._limiter.limit_of(model, self._tenant)

    async def begin(
        self, limit: LimitedModel, tokens: int, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> Grant:
        """Wait until a call may begin; return its reservation. The attempt's timeout continues to run, unless `sleep` ends the attempt."""
        has_waited = self._first is not None
        if self._first is not None and self._first[0] == limit:
            (_, grant, at), self._first = self._first, None
            if tokens <= grant.tokens * ROUGH:
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                return grant
            await self.end(limit, grant, 0)
        while True:
            [answer] = await in_thread(partial(self._limiter.answer, [RateRequest(limit, tokens, has_waited)]))
            await sleep(answer.wait_s)
            if answer.grant is not None:
                return answer.grant
            has_waited = True

    async def end(self, limit: LimitedModel, grant: Grant, tokens: int, left: Left = NOT_SAID) -> None:
        """Report the tokens that a call has used, and what the provider says is left."""
        await in_thread(partial(self._limiter.settle, limit, grant, tokens, left))

    def return_unused(self) -> None:
        """Give back what was set aside for a call that was not made."""
        if self._first is not None:
            self._limiter.settle(self._first[0], self._first[1], 0)
            self._first = None
