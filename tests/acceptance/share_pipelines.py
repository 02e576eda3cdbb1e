"""What the tests of shares run: a thousand branches that do nothing, and branches that wait at a gate."""

import asyncio
from pathlib import Path

from flujo_client import Pipeline, Step, StepConfig

BRANCHES, WAITING = 1000, 250


async def nothing(value: int) -> int:
    return value


async def wait(gate: str) -> str:
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - another process opens it
        await asyncio.sleep(1)
    return gate


def side_by_side(count: int, step: Step) -> Pipeline:
    return Pipeline([Step.parallel("fan", {f"b{number}": step for number in range(count)})])


thousand = side_by_side(BRANCHES, Step("nothing", nothing))
waiting = side_by_side(WAITING, Step("wait", wait, config=StepConfig(timeout_s=600)))
