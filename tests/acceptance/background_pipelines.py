"""The pipelines with steps in the background that the acceptance tests' workers import; their values are trails, as in `acceptance_pipelines`."""

from collections.abc import Callable
from typing import Any

from acceptance_pipelines import ONCE, Visits, arrived, begin, folder, visit, wait_at_gate
from budget_pipelines import SPENT

from flujo_client import HumanInTheLoopStep, Pipeline, PipelineContext, Step, StepConfig
from flujo_worker.agents.answer import AgentAnswer

BEHIND = StepConfig(max_retries=0, execution_mode="background")


async def break_until_mended(trail: list[str], *, context: Visits | None = None) -> list[str]:
    run, step, _ = begin()
    if not (folder() / f"mended-{run.partition('.')[0]}").exists():
        raise ValueError("not mended")
    return arrived(trail, step, context)


async def confess(trail: list[str], *, context: PipelineContext) -> list[str | None]:
    await break_until_mended(trail)
    return [context.task_id, context.background_error, context.background_error_category]


async def spend(trail: list[str]) -> AgentAnswer:
    return AgentAnswer([*trail, begin()[1]], SPENT)


def of(*steps: Step) -> Pipeline:
    return Pipeline(list(steps), context_model=Visits)


def around(agent: Callable[..., Any]) -> Pipeline:
    """A step before, one in the background, one after."""
    return of(Step("first", visit, config=ONCE), later(agent), Step("last", visit, config=ONCE))


def later(agent: Callable[..., Any]) -> Step:
    return Step("later", agent, config=BEHIND)


gated = around(wait_at_gate)
fragile = around(break_until_mended)
confessing = Pipeline([later(confess)], context_model=PipelineContext)
dear = around(spend)
launched = of(Step("first", visit, config=ONCE, queue="launching"), later(visit))
asking = of(HumanInTheLoopStep("later", "May we?", config=StepConfig(execution_mode="background")))
wide = of(
    Step.parallel(
        "fan", {letter: of(Step("first", visit, config=ONCE), later(visit)) for letter in "abcd"}, max_concurrency=2
    )
)
rounds = of(
    Step.loop_until(
        "rounds",
        of(later(visit), Step("turn", visit, config=ONCE)),
        lambda output, context: len(output) >= 3,
        max_loops=9,
    )
)
