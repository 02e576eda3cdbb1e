"""Steps that do not end when they are told to."""

import asyncio
import time
from typing import Any

from acceptance_pipelines import begin, folder, visit

from flujo_client import Pipeline, Step, StepConfig


def is_open(run: str) -> bool:
    return (folder() / f"gate-{run}").exists()


async def ignore_cancellation(trail: Any) -> Any:
    run, *_ = begin()
    while not is_open(run):
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue
    return trail


async def block(trail: Any) -> Any:
    run, *_ = begin()
    while not is_open(run):
        time.sleep(0.05)  # noqa: ASYNC251 - that is the mistake
    return trail


async def block_by_callback(trail: Any) -> Any:
    begin()
    asyncio.get_running_loop().call_soon(time.sleep, 3600)
    await asyncio.sleep(0.01)
    return trail


def once(timeout_s: float) -> StepConfig:
    return StepConfig(max_retries=0, timeout_s=timeout_s)


deaf = Pipeline([Step("deaf", ignore_cancellation, config=once(0.2))])
deaf_for_long = Pipeline([Step("deaf", ignore_cancellation, config=once(3))])
blocking = Pipeline([Step("block", block, config=once(60))])
blocking_for_good = Pipeline([Step("block", block, config=once(0.5))])
blocking_by_callback = Pipeline([Step("block", block_by_callback, config=once(0.5))])
plain = Pipeline([Step("plain", visit)])


async def wait_well(trail: Any) -> Any:
    run, *_ = begin()
    while not is_open(run):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.02)
    return trail


lasting = Pipeline([Step("lasting", wait_well, config=once(60))])
patient = Pipeline([Step("patient", wait_well, config=once(1))])
