"""A provider with rate limits over real HTTP, and the callers of several workers that share its limits through Redis."""

import asyncio
import threading
import time
from collections import deque
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from flujo_worker.agents.requests import Requests
from flujo_worker.agents.response_check import ResponseCheck
from flujo_worker.domain.rate import RateRules
from flujo_worker.guards.cells import RATES, RedisCells
from flujo_worker.guards.live import LiveGuards
from flujo_worker.guards.rates import LimitedModel, Pacing, RateLimiter
from tests.support.openai_server import OpenAIServer, Said

WRITTEN = 50
"""Tokens of each answer; the prompts differ."""


@dataclass
class StrictProvider:
    """Refuses what exceeds its requests or tokens in any window, or its requests in a twelfth of one.

    Attributes:
        most: the share of the window's requests and tokens that were let through at most.
    """

    rules: RateRules
    made: deque = field(default_factory=deque)
    began: float | None = None
    ended: float = 0.0
    calls: int = 0
    refused: int = 0
    requests: int = 0
    tokens: int = 0
    most: float = 0.0

    def __post_init__(self):
        self._lock = threading.Lock()

    def __call__(self, request):
        read = sum(len(each["content"]) for each in request.body["messages"]) // 3
        now, tokens, rules = time.monotonic(), read + WRITTEN, self.rules
        with self._lock:
            self.calls, self.began, self.ended = self.calls + 1, self.began or now, now
            while self.made and self.made[0][0] <= now - rules.window_s:
                self.made.popleft()
            requests, used = len(self.made) + 1, sum(each for _, each in self.made) + tokens
            burst = sum(at > now - rules.window_s / 12 for at, _ in self.made) + 1
            if requests > rules.requests or used > rules.tokens or burst > 2.2 * rules.requests / 12:
                self.refused += 1
                return Said("slow down", status=429, headers=(("retry-after", "1"),))
            self.made.append((now, tokens))
            self.requests, self.tokens = self.requests + 1, self.tokens + tokens
            self.most = max(self.most, requests / rules.requests, used / rules.tokens)
        return Said("well", usage=(read, WRITTEN))

    @property
    def used(self):
        """The share of its requests or its tokens that was used, from the first call to the last."""
        windows = (self.ended - self.began) / self.rules.window_s
        return max(self.requests / self.rules.requests, self.tokens / self.rules.tokens) / windows


class OwnWindow(RateLimiter):
    """Limits with a shorter window than a minute."""

    def __init__(self, cells, rules):
        super().__init__(cells, LiveGuards(list))
        self._rules = rules

    def limit_of(self, model, tenant):
        return LimitedModel(model, self._rules)


@asynccontextmanager
async def asking(server):
    """An agent that asks the server with the provider's own client, whose retries are off."""
    async with AsyncOpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
        yield Agent(OpenAIChatModel("limited", provider=OpenAIProvider(openai_client=client)))


async def call_for(seconds, rules, settings, server, *, workers, callers):
    """Call from that many workers at once, each with its own connections, until the time is over."""
    cells, draw = [RedisCells(RATES, settings) for _ in range(workers)], Random(1)

    async def caller(agent, limiter, until):
        while time.monotonic() < until:
            with suppress(ModelHTTPError):
                await agent.run(
                    "a word " * draw.randint(5, 40),
                    capabilities=[Requests(ResponseCheck(), pace=Pacing(limiter, ""))],
                    model_settings={"max_tokens": WRITTEN},
                )

    limiters, until = [OwnWindow(each, rules) for each in cells], time.monotonic() + seconds
    async with asking(server) as agent:
        await asyncio.gather(*(caller(agent, each, until) for each in limiters for _ in range(callers)))
    for each in cells:
        each.close()


def run(seconds, rules, settings, *, workers=8, callers=6):
    """Call for so many seconds; return the provider, which has counted."""
    provider = StrictProvider(rules)
    with OpenAIServer(provider) as server:
        asyncio.run(call_for(seconds, rules, settings, server, workers=workers, callers=callers))
    return provider
