"""The pipelines that the acceptance tests' workers import. Every step leaves a line in the journal when it is begun.

A pipeline's value is its trail: each step adds its name, and adds it to the context's visits too, so that both tell of a merge
that was lost or done twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import structlog
from pydantic import BaseModel

from flujo_client import Pipeline, Step, StepConfig

LARGE = 2_000_000
ONCE = StepConfig(max_retries=0)


class Visits(BaseModel):
    """The context: which steps were merged."""

    visits: list[str] = []
    luggage: str = ""


def begin() -> tuple[str, str, int]:
    """Write the journal's line, in one write, so that lines of many processes never mix."""
    bound = structlog.contextvars.get_contextvars()
    run, step, attempt = bound["run"], bound["step"], bound["attempt"]
    with (folder() / "journal").open("ab", buffering=0) as journal:
        journal.write(f"{run} {step} {attempt} {os.getpid()}\n".encode())
    return run, step, attempt


def folder() -> Path:
    return Path(os.environ["ACCEPTANCE_FOLDER"])


def arrived(trail: list[str], step: str, context: Visits | None) -> list[str]:
    if context is not None:
        context.visits.append(step)
    return [*trail, step]


async def visit(trail: list[str], *, context: Visits | None = None) -> list[str]:
    return arrived(trail, begin()[1], context)


def visit_in_thread(trail: list[str], *, context: Visits | None = None) -> list[str]:
    return arrived(trail, begin()[1], context)


async def linger(trail: list[str], *, context: Visits | None = None) -> list[str]:
    step = begin()[1]
    await asyncio.sleep(random.uniform(0.0, 0.05))
    return arrived(trail, step, context)


async def wait_at_gate(trail: list[str], *, context: Visits | None = None) -> list[str]:
    run, step, _ = begin()
    try:
        while not (folder() / f"gate-{run}").exists():  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        (folder() / f"cancelled-{run}").touch()
        raise
    return arrived(trail, step, context)


async def fail_twice(trail: list[str], *, context: Visits | None = None) -> list[str]:
    _, step, attempt = begin()
    if context is not None:
        context.visits.append(f"failed {step}")
    if attempt <= 2:
        raise ValueError(f"not at attempt {attempt}")
    return [*trail, step]


async def die(trail: list[str]) -> list[str]:
    begin()
    os.kill(os.getpid(), signal.SIGKILL)
    return trail


async def enlarge(_: Any, *, context: Visits | None = None) -> str:
    begin()
    text = random.Random(7).randbytes(LARGE // 2).hex()
    if context is not None:
        context.luggage += text[::-1]
    return text


async def measure(text: str, *, context: Visits | None = None) -> list[int]:
    begin()
    return [len(text), len(context.luggage) if context is not None else 0]


def _row(*steps: Step, **rest: Any) -> Pipeline:
    return Pipeline(steps, context_model=Visits, **rest)


three = _row(Step("first", visit), Step("second", visit_in_thread), Step("third", visit))
lingering = _row(Step("first", linger), Step("second", linger), Step("third", linger))
gated = _row(Step("before", visit), Step("gate", wait_at_gate, config=ONCE), Step("after", visit))
stubborn = _row(Step("before", visit), Step("stubborn", fail_twice, config=StepConfig(max_retries=2)))
deadly = Pipeline([Step("deadly", die)])
large = _row(Step("enlarge", enlarge), Step("measure", measure))
