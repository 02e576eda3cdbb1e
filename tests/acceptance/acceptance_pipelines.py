"""The pipelines that the acceptance tests' workers import. Every step leaves a line in the journal when it is begun.

A pipeline's value is its trail: each step adds its name, and adds it to the context's visits too, so that both show a merge that was lost
or done twice. A worker of older code imports this module too (`test_two_versions.py`), so it names nothing that such code lacks.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog
from pydantic import BaseModel, HttpUrl

from flujo_client import LoopStep, ParallelStep, Pipeline, Step, StepConfig

LARGE = 2_000_000
UGLY = "nul \x00 surrogate \ud800"
ONCE = StepConfig(max_retries=0)


T = TypeVar("T")


class Listing(BaseModel, Generic[T]):
    """A generic model with types of libraries in it."""

    items: list[T]
    url: HttpUrl
    seen: Counter[str]
    by: defaultdict[str, list[int]]
    share: Fraction


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


def echo(data: Any) -> Any:
    return data


def fail_branch(data: Any) -> Any:
    raise ValueError("a bad branch")


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


async def mutter(trail: list[str], *, context: Visits | None = None) -> list[str]:
    """Logs and hands on what models say and Postgres does not take."""
    step = begin()[1]
    structlog.get_logger().info(UGLY, said=UGLY, **{UGLY: 1})
    if context is not None:
        context.luggage = UGLY
    return arrived(trail, step, context)


async def shout(trail: list[str]) -> list[str]:
    begin()
    raise ValueError(UGLY + "!" * 20_000_000)


async def leave(_: list[str]) -> None:
    begin()
    sys.exit("no key set")


def leave_in_thread(_: list[str]) -> None:
    begin()
    sys.exit("no key set")


async def leave_in_task(_: list[str]) -> None:
    begin()
    await asyncio.gather(asyncio.create_task(leave([])))


async def give_up(_: list[str]) -> None:
    begin()
    raise asyncio.CancelledError


async def cancel_itself(_: list[str]) -> None:
    begin()
    asyncio.current_task().cancel()
    await asyncio.sleep(60)


async def hog(trail: list[str], *, context: Visits | None = None) -> list[str]:
    """Blocks the event loop, as async code should not, for longer than a lease."""
    step = begin()[1]
    time.sleep(4)  # noqa: ASYNC251 - that is what it is for
    return arrived(trail, step, context)


async def die(trail: list[str]) -> list[str]:
    begin()
    os.kill(os.getpid(), signal.SIGKILL)
    return trail


async def abort(_: list[str]) -> None:
    """Ends its process as a broken C extension would, once its neighbours are at work."""
    begin()
    await asyncio.sleep(0.3)
    os.abort()


async def endure(trail: list[str], *, context: Visits | None = None) -> list[str]:
    """Run long enough for its process to be killed meanwhile."""
    step = begin()[1]
    await asyncio.sleep(1.5)
    return arrived(trail, step, context)


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
TURNS = ["older", "newer"]
"""Queues: each of two workers takes every second step."""


def alternate(*names: str) -> Pipeline:
    return Pipeline([Step(name, visit, queue=TURNS[place % 2]) for place, name in enumerate(names)])


def has_gone_twice(_: Any, context: Visits) -> bool:
    return context.visits.count("fourth") == 2


alternating = Pipeline(
    [
        *alternate("first", "second").steps,
        LoopStep("round", body=alternate("third", "fourth"), exit_condition_callable=has_gone_twice, max_loops=3),
        ParallelStep("fan", branches={"left": alternate("l1", "l2"), "right": alternate("r1", "r2", "r3")}),
    ],
    context_model=Visits,
)
gated = _row(Step("before", visit), Step("gate", wait_at_gate, config=ONCE), Step("after", visit))
waiting = _row(Step("gate", wait_at_gate, config=ONCE), Step("after", visit))
stubborn = _row(Step("before", visit), Step("stubborn", fail_twice, config=StepConfig(max_retries=2)))
muttering = _row(Step("first", mutter), Step("second", mutter))
shouting = Pipeline([Step("shout", shout)])
hogging = _row(Step("hog", hog), Step("after", visit))
branch_fails = Pipeline(
    [
        ParallelStep(
            "both",
            branches={"good": Step("good", echo), "bad": Step("bad", fail_branch, config=ONCE)},
            on_branch_failure="ignore",
        )
    ]
)
leaving = Pipeline([Step("quit", leave, config=ONCE)])
leaving_in_thread = Pipeline([Step("quit", leave_in_thread, config=ONCE)])
leaving_in_task = Pipeline([Step("quit", leave_in_task, config=ONCE)])
giving_up = Pipeline([Step("quit", give_up, config=ONCE)])
cancelling_itself = Pipeline([Step("quit", cancel_itself, config=ONCE)])
deadly = Pipeline([Step("deadly", die)])
aborting = Pipeline([Step("abort", abort)])
enduring = _row(Step("endure", endure, config=ONCE), Step("after", visit))
large = _row(Step("enlarge", enlarge), Step("measure", measure))


def gather(_: Any) -> Listing[Fraction]:
    by = defaultdict(list, a=[1])
    return Listing[Fraction](
        items=[Fraction(1, 2)], url="https://example.com/a", seen=Counter("aab"), by=by, share=Fraction(1, 3)
    )


def inspect(listing: Listing[Fraction]) -> list[Any]:
    return [type(listing).__name__, listing]


listing = Pipeline([Step("gather", gather), Step("inspect", inspect)])
