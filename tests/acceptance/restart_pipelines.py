"""Steps for workers that stop while they run: some end in time, some end when they are cancelled, some do neither."""

import asyncio
import random
import time
from typing import Any

from acceptance_pipelines import ONCE, Visits, arrived, begin, visit, wait_at_gate
from stuck_pipelines import is_open

from flujo_client import Pipeline, Step, StepConfig

UNTIL_OPENED = StepConfig(max_retries=ONCE.max_retries, timeout_s=600.0)
"""A gate is opened by its test, which may take longer than a step may by default."""


def wait_in_thread(trail: list[str], *, context: Visits | None = None) -> list[str]:
    run, step, _ = begin()
    while not is_open(run):
        time.sleep(0.02)
    return arrived(trail, step, context)


async def ignore_cancellation(trail: list[str], *, context: Visits | None = None) -> list[str]:
    run, step, _ = begin()
    while not is_open(run):
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            continue
    return arrived(trail, step, context)


async def end_well(trail: list[str], *, context: Visits | None = None) -> list[str]:
    """Makes use of its cancellation to end with a result."""
    run, step, _ = begin()
    try:
        while not is_open(run):  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        pass
    return arrived(trail, step, context)


async def fail_when_cancelled(trail: list[str], *, context: Visits | None = None) -> list[str]:
    run, step, _ = begin()
    try:
        while not is_open(run):  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        raise ConnectionError("closed") from None
    return arrived(trail, step, context)


async def linger(trail: list[str], *, context: Visits | None = None) -> list[str]:
    step = begin()[1]
    await asyncio.sleep(random.uniform(0.0, 0.2))
    return arrived(trail, step, context)


def gate(agent: Any) -> Pipeline:
    return Pipeline([Step("gate", agent, config=UNTIL_OPENED), Step("after", visit)], context_model=Visits)


patient, in_thread, deaf = gate(wait_at_gate), gate(wait_in_thread), gate(ignore_cancellation)
ending_well, failing = gate(end_well), gate(fail_when_cancelled)
short = Pipeline([Step(f"step{number}", linger, config=ONCE) for number in range(5)], context_model=Visits)
