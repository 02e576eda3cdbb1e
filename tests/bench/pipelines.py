"""What the benchmark runs: no-op async steps in a row, side by side and in a loop; a context that is carried; a step that lasts."""

import asyncio
import os
import random

from pydantic import BaseModel, Field

from flujo_client import Pipeline, PipelineContext, Step, StepConfig

WORDS = [
    "the",
    "a",
    "of",
    "licence",
    "court",
    "river",
    "seven",
    "agent",
    "quietly",
    "answers",
    "under",
    "where",
    "because",
    "table",
    "glass",
    "and",
    "or",
    "not",
]


async def noop(value: int) -> int:
    return value


async def pay(value: int) -> object:
    from flujo_client.contract.outcome import Usage
    from flujo_worker.agents.answer import AgentAnswer  # here, for in older revisions only this workload must fail

    return AgentAnswer(value, Usage(6, 4, 1, 0.001))


async def lasting(value: str) -> str:
    with open(value, "a") as file:  # noqa: ASYNC230, PTH123 - one line, for the measurement
        file.write(f"{os.getpid()}\n")
    await asyncio.sleep(60)
    return value


async def second(value: int) -> int:
    await asyncio.sleep(1)
    return value


class Luggage(BaseModel):
    """What is carried, and the little that changes."""

    text: str = ""
    count: int = 0


async def count(value: int, *, context: Luggage) -> int:
    context.count += 1
    return value


class Sitemap(PipelineContext):
    pages: list[int] = Field(default_factory=list)


def never(_output: object, _context: object) -> bool:
    return False


def prose(size: int) -> str:
    """Text of so many characters that compresses about as well as what people write."""
    draw = random.Random(1)
    words = []
    length = 0
    while length < size:
        word = draw.choice(WORDS) + (f"-{draw.getrandbits(24):x}" if draw.random() < 0.3 else "")
        words.append(word)
        length += len(word) + 1
    return " ".join(words)[:size]


def side_by_side(branches: int, step: Step | Pipeline) -> Pipeline:
    return Pipeline([Step.parallel("fan", {f"b{number}": step for number in range(branches)})])


fan100, fan1000 = side_by_side(100, Step("noop", noop)), side_by_side(1000, Step("noop", noop))
nested = Pipeline([Step.parallel("fans", {f"f{n}": side_by_side(3, Step("noop", noop)) for n in range(3)})])
fan10k = side_by_side(10_000, Step("noop", noop))
waiting = side_by_side(500, Step("second", second))


def rounds(count: int) -> Pipeline:
    body = Pipeline([Step("one", noop), Step("two", noop)])
    return Pipeline([Step.loop_until("loop", body, never, max_loops=count)])


loop, loop10k = rounds(1000), rounds(10_000)
carrying = Pipeline([Step(f"s{number}", count) for number in range(20)], context_model=Luggage)
pages = Pipeline(
    [
        Step("sitemap", noop),
        Step.map_over("pages", Pipeline([Step("page", noop)]), iterable_input="pages"),
        Step("index", noop),
    ],
    context_model=Sitemap,
)
ten = Pipeline([Step(f"s{number}", noop) for number in range(10)])
twenty = Pipeline([Step(f"s{number}", noop) for number in range(20)])
PAID = StepConfig(expected_tokens=10, expected_cost_usd=0.001)
paid_ten = Pipeline([Step(f"s{number}", pay, config=PAID) for number in range(10)])
paid_twenty = Pipeline([Step(f"s{number}", pay, config=PAID) for number in range(20)])
paid_fan = side_by_side(200, Step("pay", pay, config=PAID))
long = Pipeline([Step("long", lasting)])
