"""Every way a run can turn, put at every place: `turn_pipelines:abort_in_loop`, for the acceptance tests' workers.

Every pipeline is `before`, the place, `after`; in the place stands `draft` and then what turns. Each step leaves its name in the
context's trail and spends ten tokens, so that both tell of a merge or a settlement that was lost or done twice.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from acceptance_pipelines import ONCE, begin
from pydantic import BaseModel

from flujo_client import HumanInTheLoopStep, ImportStep, LoopStep, MapStep, ParallelStep, Pipeline, PluginOutcome, Step
from flujo_client.contract.outcome import Usage
from flujo_client.errors import PausedException, PipelineAbortSignal
from flujo_client.pipeline.router import DynamicParallelRouterStep
from flujo_worker.agents.answer import AgentAnswer

SPENT = Usage(input_tokens=6, output_tokens=4, requests=1, cost_usd=0.25)


class Trail(BaseModel):
    """The context: which steps were merged, in order; what the map goes over."""

    trail: list[str] = []
    items: list[str] = ["x", "y"]


async def work(data: Any, *, context: Trail) -> AgentAnswer:
    """What every step does."""
    step = begin()[1]
    context.trail.append(step)
    return AgentAnswer(step, SPENT)


async def halt(data: Any, *, context: Trail) -> Any:
    await work(data, context=context)
    raise PipelineAbortSignal("enough", suggestion="ask for less")


async def heed(data: Any, *, context: Trail) -> AgentAnswer:
    """A person's word is law."""
    if data == "stop":
        raise PipelineAbortSignal("a person says stop")
    return await work(data, context=context)


async def wonder(data: Any, *, context: Trail) -> Any:
    """Ask someone from inside."""
    await work(data, context=context)
    raise PausedException("May it go out?")


async def wait_for_ever(data: Any, *, context: Trail) -> Any:
    await work(data, context=context)
    await asyncio.sleep(600)


async def shake(data: Any, *, context: Trail) -> Any:
    await work(data, context=context)
    raise ValueError("too shaky")


async def senior(data: Any, *, context: Trail) -> AgentAnswer:
    """Whom a plugin sends the work to."""
    await work(data, context=context)
    return AgentAnswer("sound", SPENT)


class SendsOn:
    """A plugin that sends to the senior whatever is not sound, or all of it."""

    def __init__(self, *, always: bool) -> None:
        self.always = always

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        return {"sends on": self.always}

    def validate(self, data: Any) -> PluginOutcome:
        if data == "sound" and not self.always:
            return PluginOutcome(success=True)
        return PluginOutcome(success=False, feedback="not sound", redirect_to=senior)


def step(name: str, agent: Any = work, **rest: Any) -> Step:
    return Step(name, agent, config=ONCE, **rest)


def circle() -> Step:
    """A step that is, through another, its own fallback."""
    first = step("shaky", shake)
    second = step("shakier", shake, fallback_step=first)
    object.__setattr__(first, "fallback_step", second)  # what no constructor can say, a program may still do
    return first


TURNS: dict[str, Callable[[], list[Step]]] = {
    "pause": lambda: [HumanInTheLoopStep("ask", "May it go out?"), step("heed", heed)],
    "wonder": lambda: [step("ask", wonder), step("heed", heed)],
    "refuse": lambda: [HumanInTheLoopStep("ask", "May it go out?"), step("heed", heed)],
    "abort": lambda: [step("halt", halt)],
    "limit": lambda: [step("dear"), step("polish")],
    "cancel": lambda: [step("wait", wait_for_ever)],
    "fallback": lambda: [step("shaky", shake, fallback_step=step("rescue"))],
    "circle": lambda: [circle()],
    "redirect": lambda: [step("junior", plugins=[SendsOn(always=False)])],
    "carousel": lambda: [step("junior", plugins=[SendsOn(always=True)])],
}


def fan(name: str, left: str, core: Pipeline, right: str) -> Step:
    """The turn between two branches, in one lane, so that it is known who has begun: the left has ended, the right has not begun."""
    return ParallelStep(name, branches={"a": step(left), "b": core, "c": step(right)}, max_concurrency=1)


async def choose(data: Any, *, context: Trail) -> AgentAnswer:
    await work(data, context=context)
    return AgentAnswer(["a", "b"], SPENT)


def route(core: Pipeline) -> Step:
    branches = {"a": step("beside"), "b": core, "c": step("unchosen")}
    return DynamicParallelRouterStep("route", router_agent=choose, branches=branches, max_concurrency=1)


def loop(core: Pipeline) -> Step:
    return LoopStep("loop", loop_body_pipeline=core, exit_condition_callable=twice, max_loops=5)


def twice(_: Any, context: Trail) -> bool:
    return context.trail.count("draft") == 2


PLACES: dict[str, Callable[[Pipeline], Step]] = {
    "top": lambda core: core,
    "branch": lambda core: fan("fan", "left", core, "right"),
    "nested_branch": lambda core: fan("outer", "west", Pipeline([fan("inner", "left", core, "right")]), "east"),
    "loop": loop,
    "branch_loop": lambda core: fan("fan", "left", Pipeline([loop(core)]), "right"),
    "map": lambda core: MapStep("map", pipeline_to_run=core, iterable_input="items"),
    "router": route,
    "import": lambda core: ImportStep("import", pipeline=core, inherit_context=True),
    "child_run": lambda core: ImportStep("import", pipeline=core, inherit_context=True, own_run=True),
}


def placed(turn: str, place: str) -> Pipeline:
    """A turn at a place."""
    core = Pipeline([step("draft"), *TURNS[turn]()])
    inside = list(core.steps) if place == "top" else [PLACES[place](core)]
    return replace(Pipeline([step("before"), *inside, step("after")]), name=f"{turn}_in_{place}", context_model=Trail)


def __getattr__(name: str) -> Pipeline:
    turn, found, place = name.partition("_in_")
    if not found or turn not in TURNS or place not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = placed(turn, place)
    return globals()[name]
