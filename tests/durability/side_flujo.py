"""Flujo Worker: a step that runs the agents, in worker processes."""

from flujo_client import Pipeline, Step, StepConfig
from flujo_worker.agents.durability import FlujoDurability
from flujo_worker.testing.durability import CASES, Durable, Notes, workload

DURABLE = Durable(FlujoDurability, inline={"flujo": False})
CONFIG = StepConfig(timeout_s=60, max_retries=0)


def pipeline(name):
    perform = workload(name, DURABLE)

    async def work(job: str, context: Notes) -> str:
        return await perform(job, context)

    return Pipeline([Step("work", work, config=CONFIG)], name=name, context_model=Notes)


def __getattr__(name):
    if name not in {case.workload for case in CASES}:
        raise AttributeError(name)
    globals()[name] = made = pipeline(name)
    return made
