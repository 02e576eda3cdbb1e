"""Parts of the tests of questions to people: types of answers, messages, and an engine that asks."""

from typing import Any

from pydantic import BaseModel

from flujo_client import HumanInTheLoopStep, Pipeline
from flujo_worker.testing import LocalEngine


class Verdict(BaseModel):
    """What a person says."""

    approved: bool
    why: str = ""


def ask(name: str = "ask", message: Any = "go?", **rest: Any) -> HumanInTheLoopStep:
    """A question."""
    return HumanInTheLoopStep(name, message, **rest)


def paused_run(engine: LocalEngine, pipeline: Pipeline, value: Any = "in", context: Any = None) -> str:
    """Begin a run and continue until it asks."""
    run = engine.enqueue(pipeline, value, context=context)
    engine.drain()
    return run


def event_data(engine: LocalEngine, run: str, name: str) -> list[dict[str, Any]]:
    """The run's events with a name."""
    return [each.data for each in engine.story(run) if each.name == name]
