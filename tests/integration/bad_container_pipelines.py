"""Containers that go wrong at run time, for `test_bad_containers.py`; the workers import this module by its name."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from flujo_client.contract.context import PipelineContext
from flujo_client.errors import NonRetryableError
from flujo_client.pipeline.machine import StateMachineStep
from flujo_client.pipeline.nested import ImportStep
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step, StepConfig

ONCE = StepConfig(max_retries=0)


class Notes(PipelineContext):
    """The context of all of these."""

    title: str = ""
    items: Any = ()


def echo(data: Any) -> Any:
    """Give what came."""
    return data


def fails(data: Any) -> Any:
    """Fail permanently."""
    raise NonRetryableError(f"no {data}")


def raises(*_: Any) -> Any:
    """A mapper that is broken."""
    raise KeyError("a bug")


async def never_returns(*_: Any) -> Any:
    """A mapper that waits forever."""
    await asyncio.Event().wait()


def blocks(*_: Any) -> Any:
    """The same, holding a thread."""
    threading.Event().wait(20)


def answers(value: Any) -> Any:
    """A function that always gives this."""
    return lambda *_: value


def writes(text: str) -> Any:
    """An agent that sets the title."""

    def agent(data: Any, *, context: Any) -> Any:
        context.title = text
        return data

    return agent


def of(*steps: Step) -> Pipeline:
    """One of these pipelines: what follows the container must never run."""
    return Pipeline([*steps, Step("after", echo)], context_model=Notes)


ok = Step("ok", echo)
no = Step("no", fails, config=ONCE)
never = answers(False)

no_branch = of(Step.branch_on("c", answers("elsewhere"), {"here": ok, True: ok}))
condition_raises = of(Step.branch_on("c", raises, {"here": ok}))
condition_never_returns = of(Step.branch_on("c", never_returns, {"here": ok}))
condition_blocks = of(Step.branch_on("c", blocks, {"here": ok}))
exit_raises = of(Step.loop_until("c", ok, raises))
exit_never_returns = of(Step.loop_until("c", ok, never_returns))
initial_raises = of(Step.loop_until("c", ok, never, initial_input_to_loop_body_mapper=raises))
iteration_raises = of(Step.loop_until("c", ok, never, iteration_input_mapper=raises))
output_raises = of(Step.loop_until("c", ok, never, loop_output_mapper=raises))
output_cannot_travel = of(Step.loop_until("c", ok, never, loop_output_mapper=answers(threading.Lock())))
body_fails = of(Step.loop_until("c", no, never))
missing_items = of(Step.map_over("c", ok, iterable_input="scratchpad.missing"))
text_items = of(Step.map_over("c", ok, iterable_input="title"))
text_items_in_parallel = of(Step.map_over("c", ok, iterable_input="title", parallel=True))
conflict = of(Step.parallel("c", {"a": Step("x", writes("one")), "b": Step("y", writes("two"))}))
merge_raises = of(Step.parallel("c", {"a": ok, "b": Step("y", echo)}, merge_strategy=raises))
merge_gives_nonsense = of(Step.parallel("c", {"a": ok}, merge_strategy=answers("nonsense")))
reduce_raises = of(Step.parallel("c", {"a": ok}, reduce=raises))
branch_fails = of(Step.parallel("c", {"a": no, "b": ok, "d": ok}))
lanes_fail = of(Step.parallel("c", dict.fromkeys("abcdef", no), max_concurrency=2))
all_fail = of(Step.parallel("c", {"a": no, "b": no}, on_branch_failure="ignore"))
selects_nonsense = of(Step.dynamic_parallel_branch("c", answers(5), {"a": ok}))
router_fails = of(Step.dynamic_parallel_branch("c", fails, {"a": ok}, config=ONCE))
import_fails = of(ImportStep("c", pipeline=no))
going_round = of(
    StateMachineStep(
        "c",
        states={"a": ok, "b": ok},
        start_state="a",
        end_states=["b"],
        transitions=[{"from": "a", "to": "a"}],
        max_visits=3,
    )
)
stuck = of(StateMachineStep("c", states={"a": ok, "b": ok}, start_state="a", end_states=["b"], transitions=[]))
deep = of(Step.parallel("c", {"a": Step.loop_until("l", Step.branch_on("d", answers("x"), {"x": no}), never), "b": ok}))
