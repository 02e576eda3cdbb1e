"""What the benchmark runs: no-op async steps, and one that lasts."""

import asyncio

from flujo_client import Pipeline, Step


async def noop(value: int) -> int:
    return value


async def lasting(value: str) -> str:
    with open(value, "a") as file:  # noqa: ASYNC230, PTH123 - one line, for the measurement
        file.write("started\n")
    await asyncio.sleep(60)
    return value


ten = Pipeline([Step(f"s{number}", noop) for number in range(10)])
twenty = Pipeline([Step(f"s{number}", noop) for number in range(20)])
long = Pipeline([Step("long", lasting)])
