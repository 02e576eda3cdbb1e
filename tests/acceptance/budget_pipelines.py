"""The pipelines under limits that the acceptance tests' workers import. Every call spends ten tokens, and a tenth of a dollar."""

from __future__ import annotations

import asyncio
from typing import Any

from acceptance_pipelines import begin, folder

from flujo_client import Pipeline, Step, StepConfig, UsageLimits
from flujo_client.contract.outcome import Usage
from flujo_worker.agents.answer import AgentAnswer

SPENT = Usage(input_tokens=6, output_tokens=4, requests=1, cost_usd=0.1)
KNOWN = StepConfig(max_retries=0, expected_tokens=10, expected_cost_usd=0.1)
UNKNOWN = StepConfig(max_retries=0)


async def spend(data: Any) -> AgentAnswer:
    begin()
    return AgentAnswer(data, SPENT)


async def spend_at_gate(data: Any) -> AgentAnswer:
    run = begin()[0]
    try:
        while not (folder() / f"gate-{run.partition('.')[0]}").exists():  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        (folder() / f"cancelled-{run}").touch()
        raise
    return AgentAnswer(data, SPENT)


async def wait_for_ever(data: Any) -> Any:
    run = begin()[0]
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        (folder() / f"cancelled-{run}").touch()
        raise
    return data


def row(*names: str, config: StepConfig = KNOWN) -> Pipeline:
    return Pipeline([Step(name, spend, config=config) for name in names])


def race(width: int, **rest: Any) -> Pipeline:
    branches = {f"b{number}": Step("call", spend, config=KNOWN) for number in range(width)}
    return Pipeline([Step.parallel("race", branches, on_branch_failure="ignore", merge_strategy="no_merge", **rest)])


three = row("first", "second", "third")
surprising = row("first", "second", "third", config=UNKNOWN)
gated = Pipeline([Step("gate", spend_at_gate, config=KNOWN)])
twenty = race(20)
two_hundred = race(200)
siblings = Pipeline(
    [
        Step.parallel(
            "fan",
            {
                "spends": Step("gate", spend_at_gate, config=UNKNOWN),
                "waits": Step("waits", wait_for_ever, config=UNKNOWN),
            },
            on_branch_failure="ignore",
        )
    ]
)
child = Pipeline([Step("before", spend, config=KNOWN), row("inner", "last").as_step("legal", own_run=True)])
own_limits = Pipeline(
    [
        Step("free", spend, config=KNOWN),
        Step("dear", spend, config=KNOWN, usage_limits=UsageLimits(total_tokens_limit=9)),
    ]
)
