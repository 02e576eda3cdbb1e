"""The shapes of run that chaos is let loose on. The plain ones give their steps' names, in order, as output and as the context's visits.

So one oracle serves all of them: whatever was lost, doubled or merged from a failed attempt shows in the trail. Those with containers
are compared with a run of the same shape that nothing happened to.
"""

from __future__ import annotations

import asyncio
import os
import random

from acceptance_pipelines import ONCE, Visits, arrived, begin, visit, visit_in_thread, wait_at_gate

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.errors import NonRetryableError

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


async def abort(_: list[str]) -> None:
    """Ends its process, and takes its neighbours' tries with it."""
    begin()
    await asyncio.sleep(random.uniform(0.0, 0.3))
    os.abort()


def _row(*steps: Step) -> Pipeline:
    return Pipeline(steps, context_model=Visits)


_PATIENT = StepConfig(max_retries=2)
three = _row(Step("first", visit), Step("second", visit_in_thread), Step("third", visit))
lingering = _row(*(Step(f"step{n}", linger) for n in range(6)))
faltering = _row(Step("before", linger), Step("falter", falter, config=_PATIENT), Step("after", linger))
burdened = _row(Step("first", burden), Step("second", burden), Step("third", linger))
gated = _row(Step("before", visit), Step("gate", wait_at_gate, config=ONCE), Step("after", visit))
apart = _row(Step("here", linger), Step("there", linger, queue="heavy"), Step("back", linger))


killer = _row(Step("before", visit), Step("abort", abort))


def _deep(depth: int) -> Step:
    inner = _deep(depth - 1) if depth > 1 else Step("leaf", linger)
    return Step.parallel(f"fan{depth}", {"left": inner, "right": inner}, reduce="first")


async def is_long(trail: list[str], _: Visits) -> bool:
    return len(trail) >= ROUNDS


async def list_up(context: Visits, branches: dict[str, Visits]) -> None:
    """A merge of the user's own, which takes its time."""
    await asyncio.sleep(random.uniform(0.0, 0.2))
    for name, branch in branches.items():
        context.visits.append(f"{name}:{len(branch.visits)}")


async def refuse(_: list[str]) -> list[str]:
    begin()
    await asyncio.sleep(random.uniform(0.0, 0.2))
    raise NonRetryableError("as ever")


def is_even(trail: list[str], _: Visits) -> bool:
    return len(trail) % 2 == 0


ROUNDS = 6
_falter = Step("falter", falter, config=_PATIENT)
_arms = {"one": Step("one", linger), "two": _row(Step("two", linger), Step("three", visit)), "shaky": _falter}
_sides = Step.branch_on("sides", is_even, {True: Step("even", linger), False: Step("odd", visit)})
_lanes = {f"arm{n}": Step("lane", linger) for n in range(5)}

CONTAINERS = {
    "deep": _row(_deep(3), Step("after", visit)),
    "arms": _row(Step("before", visit), Step.parallel("fan", _arms, reduce="last"), Step("after", visit)),
    "merging": _row(Step.parallel("fan", _arms, merge_strategy=list_up, reduce="first"), Step("after", visit)),
    "lanes": _row(Step.parallel("fan", _lanes, max_concurrency=2, reduce="first"), Step("after", visit)),
    "looping": _row(Step.loop_until("rounds", _row(_sides), is_long, max_loops=20), Step("after", visit)),
    "ignoring": _row(
        Step.parallel("fan", {**_arms, "bad": Step("bad", refuse)}, on_branch_failure="ignore", reduce="first"),
        Step("after", visit),
    ),
    "breaking": _row(
        Step.parallel(
            "fan",
            {
                "deep": _deep(2),
                "bad": Step("bad", refuse),
                **_arms,
                "late": _row(*[Step(f"late{n}", linger) for n in range(3)]),
            },
        ),
        Step("after", visit),
    ),
}
globals().update(CONTAINERS)
"""Run by name, as the plain ones are."""

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
