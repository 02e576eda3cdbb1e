"""The cached steps that the acceptance tests' workers import. Each leaves a line in the journal when its agent is called."""

import asyncio
from typing import Any

from acceptance_pipelines import ONCE, begin, folder
from pydantic import BaseModel

from flujo_client import Pipeline, Step


class Desk(BaseModel):
    """The context: what the cached steps write, and what is there before."""

    topic: str = ""
    read: int = 0
    seen: list[str] = []
    items: list[str] = ["x", "y"]
    summary: dict[str, Any] = {}


async def write(data: Any, *, context: Desk) -> dict[str, Any]:
    begin()
    context.read += 1
    context.seen.append(f"{data}")
    return {"topic": f"about {data}"}


def note(data: Any) -> str:
    begin()
    return f"noted {data}"


def shaky(data: Any) -> str:
    begin()
    if not (folder() / "repaired").exists():
        raise ValueError("not yet")
    return f"done {data}"


async def linger(data: Any) -> str:
    """Return once the test has seen that others wait."""
    begin()
    while not (folder() / "seen").exists():  # noqa: ASYNC110 - the test opens it
        await asyncio.sleep(0.02)
    return f"done {data}"


def stop(*_: Any) -> bool:
    return False


def _row(*steps: Step) -> Pipeline:
    return Pipeline(list(steps), context_model=Desk)


def _cached(name: str) -> Step:
    return Step.cached(Step(name, note))


writing = _row(Step.cached(Step("write", write, updates_context=True, sink_to="summary")), Step("after", note))
failing = _row(Step.cached(Step("shaky", shaky, config=ONCE)))
everywhere = _row(
    _cached("plain"),
    Step.parallel("fan", {"a": _cached("branch"), "b": Step("uncached", note)}, merge_strategy="no_merge"),
    Step.map_over("each", _cached("item"), iterable_input="items", parallel=True),
    _row(_cached("inner")).as_step("nested"),
    _row(_cached("child")).as_step("apart", own_run=True),
    Step.loop_until("rounds", _cached("turn"), stop, max_loops=2),
    Step.cached(Step.loop_until("whole", Step("round", note), stop, max_loops=2)),
)
slow = Pipeline([Step.cached(Step("slow", linger))])
