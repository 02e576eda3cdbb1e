"""Pipelines that run while their rows are damaged: one that uses every kind of row, and an unrelated one next to it."""

from typing import Any

from flujo_client import (
    HumanInTheLoopStep,
    ImportStep,
    LoopStep,
    MapStep,
    ParallelStep,
    Pipeline,
    Step,
    StepConfig,
    UsageLimits,
)
from flujo_client.contract.context import PipelineContext

ONCE = StepConfig(max_retries=1, expected_tokens=1)


class Book(PipelineContext):
    """The context of both."""

    items: tuple[str, ...] = ("x", "y", "z")
    long: str = "long " * 200


def say(data: Any) -> str:
    """Give text, whatever came."""
    return f"said {str(data)[:20]}"


def step(name: str, **rest: Any) -> Step:
    """A step that succeeds."""
    return Step(name, say, config=ONCE, **rest)


def is_done(_output: Any, context: Book) -> bool:
    """Tell whether a loop is over: at once, whatever was damaged."""
    return bool(context)


victim = Pipeline(
    [
        step("first", sink_to="scratchpad.first"),
        ParallelStep(
            "both", branches={"a": Pipeline([step("x"), step("y")]), "b": step("z"), "c": step("w")}, max_concurrency=2
        ),
        LoopStep("loop", body=Pipeline([step("turn")]), exit_condition_callable=is_done, max_loops=2),
        HumanInTheLoopStep(
            "ask",
            message_for_user="well?",
            input_schema={"type": "string"},
            expires_s=20.0,
            on_expiry="default",
            default="ok",
        ),
        MapStep("each", pipeline_to_run=step("item"), iterable_input="items", parallel=True),
        ImportStep("own", pipeline=Pipeline([step("inside")]), own_run=True),
        step("last"),
    ],
    name="victim",
    context_model=Book,
)
onlooker = Pipeline([step("one"), step("two"), step("three")], name="onlooker", context_model=Book)
LIMITS = UsageLimits(total_tokens_limit=1000)
