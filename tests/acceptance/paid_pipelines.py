"""Pipelines whose every call costs an amount that no other call costs, and notes it in a file before it reports it.

So what was called, what was recorded as spent and what was merged can be compared call by call, whatever becomes of the database.
"""

import asyncio
import random
from typing import Any

from acceptance_pipelines import folder
from pydantic import BaseModel
from structlog.contextvars import get_contextvars

from flujo_client import Pipeline, Step
from flujo_client.contract.outcome import Usage
from flujo_worker.agents.answer import AgentAnswer

draw = random.SystemRandom()  # forked workers would draw the same amounts from any other

HELD = "held"
"""The input of runs that make one call, and wait with the next one until there is a file of this name."""


class Merged(BaseModel):
    """The context: the amounts of the calls that were merged."""

    amounts: list[int] = []


async def pay(data: Any, *, context: Merged) -> AgentAnswer:
    while HELD in str(data) and context.amounts and not (folder() / HELD).exists():  # noqa: ASYNC110 - the test creates it
        await asyncio.sleep(0.05)
    await asyncio.sleep(draw.uniform(0.0, 0.03))
    amount = draw.randrange(1, 2**30)
    context.amounts.append(amount)
    with (folder() / "ledger").open("ab", buffering=0) as ledger:
        ledger.write(f"{get_contextvars()['run']} {amount}\n".encode())
    return AgentAnswer(data, Usage(input_tokens=amount, requests=1, cost_usd=amount / 2**30))


def enough(_: str, context: Merged) -> bool:
    return len(context.amounts) == 3


def _pipeline(*steps: Step) -> Pipeline:
    return Pipeline(steps, context_model=Merged)


row = _pipeline(*[Step(f"step{number}", pay) for number in range(3)])
fan = _pipeline(Step.parallel("fan", {f"b{number}": Step("branch", pay) for number in range(4)}), Step("after", pay))
rounds = _pipeline(Step.loop_until("rounds", Step("turn", pay), enough, max_loops=5))
long = _pipeline(*[Step(f"step{number}", pay) for number in range(12)])
wide = _pipeline(*[Step.parallel(f"fan{n}", {f"b{each}": Step("branch", pay) for each in range(4)}) for n in range(3)])
CALLS = {"row": 3, "fan": 5, "rounds": 3}
"""How many calls are merged in each of those that end soon."""
