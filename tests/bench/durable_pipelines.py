"""W8's agents in steps: they measure themselves, so that what a step costs is not in it."""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.attempt_info import current_attempt
from flujo_worker.agents.durability import FlujoDurability
from tests.bench.durable_agent import agent, measured

PLAIN, DURABLE = agent("plain"), agent("durable", FlujoDurability())


async def without(together: int) -> list[float]:
    return await measured(together, lambda: PLAIN.run("begin"))


async def durable(together: int) -> list[float]:
    return await measured(together, lambda: DURABLE.run("begin"))


async def down_once(_messages: object, _info: object) -> ModelResponse:
    info = current_attempt()
    if info is None or info.number == 1:
        raise ModelHTTPError(503, "scripted", "overloaded")
    return ModelResponse([TextPart("up")])


DOWN = Agent(FunctionModel(down_once), name="down", capabilities=[FlujoDurability()])


async def replayed(_: int) -> list[float]:
    """Run an agent, and fail with an outage; the next attempt finds its calls on record."""
    took = await durable(1)
    await DOWN.run("begin")
    return took


CONFIG = StepConfig(timeout_s=300, max_retries=1)
w8_without, w8_durable, w8_replayed = (
    Pipeline([Step("agents", body, config=CONFIG)], name=body.__name__) for body in (without, durable, replayed)
)
