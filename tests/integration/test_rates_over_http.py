"""Callers of several workers, a provider with limits over real HTTP, and Redis between them (SYS-19, U-13)."""

import asyncio

import pytest
from pydantic_ai.exceptions import ModelHTTPError

from flujo_client.config.manager import Settings
from flujo_worker.agents.call import timed_call
from flujo_worker.agents.requests import Requests
from flujo_worker.agents.response_check import ResponseCheck
from flujo_worker.domain.rate import NOT_SAID, Left, RateRules
from flujo_worker.runtime.attempt_run import AttemptRun
from tests.support import rate_callers
from tests.support.openai_server import OpenAIServer, Said
from tests.support.performing import performing

DATABASE = "postgresql://localhost/none"


@pytest.mark.services
def test_a_fleet_stays_below_a_strict_providers_limits(redis_url):
    """U-13: eight workers' callers; requests and tokens of any window are below the limit, and next to no call is refused.

    One of six tries has to succeed: on a busy machine, calls that were let through one after the other arrive together.
    `make bench-rates` measures the same over longer, with the share of the limit that is used.
    """
    rules = RateRules(requests=60, tokens=9_000, slow_start_s=0.0, window_s=3.0)
    settings = Settings.model_validate({"database_url": DATABASE, "broker_url": redis_url})
    tries = (rate_callers.run(4.0, rules, settings, workers=8, callers=3) for _ in range(6))
    assert any(
        provider.refused <= 0.01 * provider.calls and provider.most <= 1.0 and provider.requests > 20
        for provider in tries
    )


class Recorder:
    """Paces nothing, and records what it receives."""

    def __init__(self):
        self.names, self.ended = [], []

    def limit_of(self, model):
        self.names.append(model)
        return "limit"

    async def begin(self, limit, tokens, sleep):
        return "grant"

    async def end(self, limit, grant, tokens, left=NOT_SAID):
        self.ended.append((tokens, left))


def test_headers_of_answers_and_refusals_are_heard():
    """SYS-19: with the provider's own client: what is left, and without Retry-After the reset of what is used up."""
    few = (("x-ratelimit-remaining-requests", "2"), ("x-ratelimit-remaining-tokens", "70"))
    none = (("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "1.5s"))
    answers = [
        Said("well", usage=(10, 5), headers=few),
        Said("slow down", status=429, headers=none),
        Said("slow down", status=429, headers=(*none, ("retry-after", "7"))),
    ]
    pace, run = Recorder(), AttemptRun()

    async def call(server):
        async with rate_callers.asking(server) as agent:
            await agent.run("hello", capabilities=[Requests(ResponseCheck(), pace=pace)])
            for _ in range(2):
                with pytest.raises(ModelHTTPError), performing(run), timed_call(agent):
                    await agent.run("hello", capabilities=[Requests(ResponseCheck(), pace=pace)])

    with OpenAIServer(answers) as server:
        asyncio.run(call(server))
    assert set(pace.names) == {"openai:limited"}
    assert pace.ended == [(15, Left(2, 70)), (0, NOT_SAID), (0, NOT_SAID)]
    assert [(each.model, each.refused, each.failed, each.asked_s) for each in run.calls] == [
        ("openai:limited", True, False, 1.5),
        ("openai:limited", True, False, 7.0),
    ]
