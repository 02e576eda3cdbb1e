"""The shapes of run that chaos is let loose on. Each gives its steps' names, in order, as output and as the context's visits.

So one oracle serves all: whatever was lost, doubled or merged from a failed attempt shows in the trail.
"""

from __future__ import annotations

import asyncio
import random

from acceptance_pipelines import ONCE, Visits, arrived, begin, visit, visit_in_thread, wait_at_gate

from flujo_client import Pipeline, Step, StepConfig

LOAD = 200_000
"""Bytes that a burdened step adds: enough to be stored aside and travel by reference."""


def load_of(step: str) -> str:
    """What a burdened step adds to the luggage: hardly compressible, and always the same."""
    return random.Random(step).randbytes(LOAD // 2).hex()


async def linger(trail: list[str], *, context: Visits) -> list[str]:
    """Takes its time, so that there is always something to be interrupted."""
    step = begin()[1]
    await asyncio.sleep(random.uniform(0.0, 0.4))
    return arrived(trail, step, context)


async def falter(trail: list[str], *, context: Visits) -> list[str]:
    """Fails twice, each time with a changed context that must not be merged."""
    _, step, attempt = begin()
    await asyncio.sleep(random.uniform(0.0, 0.05))
    trail = arrived(trail, step, context)
    if attempt <= 2:
        raise ValueError(f"not at attempt {attempt}")
    return trail


async def burden(trail: list[str], *, context: Visits) -> list[str]:
    step = begin()[1]
    context.luggage += load_of(step)
    return arrived(trail, step, context)


def _row(*steps: Step) -> Pipeline:
    return Pipeline(steps, context_model=Visits)


_PATIENT = StepConfig(max_retries=2)
three = _row(Step("first", visit), Step("second", visit_in_thread), Step("third", visit))
lingering = _row(*(Step(f"step{n}", linger) for n in range(6)))
faltering = _row(Step("before", linger), Step("falter", falter, config=_PATIENT), Step("after", linger))
burdened = _row(Step("first", burden), Step("second", burden), Step("third", linger))
gated = _row(Step("before", visit), Step("gate", wait_at_gate, config=ONCE), Step("after", visit))
apart = _row(Step("here", linger), Step("there", linger, queue="heavy"), Step("back", linger))

SHAPES = {
    name: [step.name for step in pipeline.steps]
    for name, pipeline in {
        "three": three,
        "lingering": lingering,
        "faltering": faltering,
        "burdened": burdened,
        "gated": gated,
        "apart": apart,
    }.items()
}
QUEUES = ("flujo.attempts", "flujo.control", "heavy")
