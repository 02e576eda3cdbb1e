"""The pipelines under limits that the acceptance tests' workers import. Every call spends ten tokens, and a tenth of a dollar."""

import asyncio
from typing import Any

from acceptance_pipelines import begin, folder

from flujo_client import Backoff, Pipeline, Step, StepConfig, UsageLimits
from flujo_client.config.models import Cost
from flujo_client.contract.outcome import Usage
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.agents.pricing import AskedModel, price_of

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


class Billed:
    """An agent with a model that has a price: at the gate it spends what the prompt and all it may write cost."""

    def __init__(self, model: str) -> None:
        self.model = model

    async def run(self, data: Any, *, max_tokens: int) -> AgentAnswer:
        await spend_at_gate(data)
        read = len(data) // 4
        cost = price_of(AskedModel(*self.model.split(":")), read, max_tokens, Cost())
        return AgentAnswer(data, Usage(read, max_tokens, 1, cost or 0.0))


async def fail(data: Any) -> Any:
    begin()
    raise RuntimeError("not yet")


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


def race(width: int, agent: Any = spend, config: StepConfig = KNOWN) -> Pipeline:
    branches = {f"b{number}": Step("call", agent, config=config) for number in range(width)}
    return Pipeline([Step.parallel("race", branches, on_branch_failure="ignore", merge_strategy="no_merge")])


three = row("first", "second", "third")
surprising = row("first", "second", "third", config=UNKNOWN)
gated = Pipeline([Step("gate", spend_at_gate, config=KNOWN)])
twenty = race(20)
openai, anthropic, google = (
    race(20, agent=Billed(model), config=StepConfig(max_retries=0, max_tokens=400))
    for model in ("openai:gpt-5.2", "anthropic:claude-sonnet-4-5", "google-gla:gemini-3-pro-preview")
)
two_hundred = race(200)
siblings = Pipeline(
    [
        Step.parallel(
            "fan",
            {
                "spends": Step("gate", spend_at_gate, config=UNKNOWN),
                "waits": Step("waits", wait_for_ever, config=UNKNOWN),
                "is_tried_again": Step("again", fail, config=StepConfig(max_retries=1, backoff=Backoff(base_s=60))),
                "is_queued": Step("queued", spend, config=UNKNOWN, queue="later"),
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
