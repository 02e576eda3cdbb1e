"""Steps that fail at once, or work on until they are told to stop, and write down when (`test_at_once.py`)."""

import asyncio
import time
from typing import Any

import structlog
from acceptance_pipelines import ONCE, folder

from flujo_client import Backoff, ParallelStep, Pipeline, Step, StepConfig

QUICKLY = StepConfig(max_retries=1, backoff=Backoff(base_s=0.1, jitter=0.0))


def note(what: str) -> None:
    """Write down that this happens now, in this run."""
    run = structlog.contextvars.get_contextvars()["run"]
    with (folder() / f"moments-{run}").open("ab", buffering=0) as lines:
        lines.write(f"{what} {time.time()}\n".encode())


async def works_on(_: Any) -> None:
    note("begun")
    try:
        await asyncio.sleep(120)
    except asyncio.CancelledError:
        note("told")
        raise


async def fails(_: Any) -> None:
    run = structlog.contextvars.get_contextvars()["run"]
    while not (folder() / f"moments-{run}").exists():  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)  # what its sibling hears is not to be due to the moment at which that began
    raise ValueError("no")


async def fails_once(_: Any) -> str:
    note("tried")
    if structlog.contextvars.get_contextvars()["attempt"] == 1:
        raise ValueError("not yet")
    return "done"


working = Pipeline([Step("works", works_on, config=ONCE)])
siblings = Pipeline(
    [ParallelStep("fan", branches={"a": Step("works", works_on, config=ONCE), "b": Step("fails", fails, config=ONCE)})]
)
hasty = Pipeline([Step("fails_once", fails_once, config=QUICKLY)])
