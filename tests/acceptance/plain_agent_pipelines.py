"""An agent in a step, durable or not, and which modules of durability its worker has imported by then."""

import sys

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from flujo_client import Pipeline, Step, StepConfig


async def look() -> int:
    return 42


async def imported(_: object) -> list[str]:
    ours = ("flujo_worker.durable.", "flujo_worker.agents.durability", "flujo_worker.agents.asked")
    return sorted(name for name in sys.modules if name.startswith(ours))


agent = Agent(TestModel(), name="looker", tools=[look])
plain, durable = (
    Pipeline([Step("agent", agent, config=StepConfig(durable=is_durable)), Step("imported", imported)])
    for is_durable in (False, True)
)
