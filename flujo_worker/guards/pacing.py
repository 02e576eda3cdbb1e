"""One attempt's calls of models with a rate limit: each waits for its turn, and reports what it has used.

It must not decide when a call may begin. In: a model's name, the tokens that a call may need, then those that it used. Out: waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from flujo_worker.domain.rate import NOT_SAID, Left
from flujo_worker.guards.rates import LimitedModel, RateLimiter, RateRequest
from flujo_worker.runtime.attempt_run import in_thread

if TYPE_CHECKING:
    from flujo_worker.domain.rate import Grant, RateAnswer

ROUGH: Final = 1.25
"""A call that needs so many times its reserved tokens asks again."""


class Pacing:
    """Paces an attempt's calls.

    Args:
        limiter: the limits that all workers share.
        tenant: the run's.
    """

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
        """Return the limit of a model, if it has one."""
        return self._limiter.limit_of(model, self._tenant)

    async def begin(
        self, limit: LimitedModel, tokens: int, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> Grant:
        """Wait until a call may begin; return its reservation. The attempt's timeout continues to run, unless `sleep` ends the attempt."""
        had_turn = self._first is not None
        if self._first is not None and self._first[0] == limit:
            (_, grant, at), self._first = self._first, None
            if tokens <= grant.tokens * ROUGH:
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                return grant
            await self.end(limit, grant, 0)
        return await self._ask(limit, tokens, sleep, has_waited=had_turn)

    async def end(self, limit: LimitedModel, grant: Grant, tokens: int, left: Left = NOT_SAID) -> None:
        """Report the tokens that a call has used, and what the provider says is left."""
        await in_thread(partial(self._limiter.settle, limit, grant, tokens, left))

    def return_unused(self) -> None:
        """Give back what was set aside for a call that was not made."""
        if self._first is not None:
            self._limiter.settle(self._first[0], self._first[1], 0)
            self._first = None

    async def _ask(
        self, limit: LimitedModel, tokens: int, sleep: Callable[[float], Awaitable[None]], *, has_waited: bool
    ) -> Grant:
        while True:
            [answer] = await in_thread(partial(self._limiter.answer, [RateRequest(limit, tokens, has_waited)]))
            await sleep(answer.wait_s)
            if answer.grant is not None:
                return answer.grant
            has_waited = True
