"""A durable step whose agent asks a provider over HTTP: twelve requests, 35 calls of a tool, five at once in every other turn.

A run's input says where its worker is killed: `kill:<model or tool>:<number>:<where>`. A kill in a request is the server's part
(`test_durable_kills.py`), which knows the process by the file `asking`.
"""

import asyncio
import os

from acceptance_pipelines import folder
from durable_pipelines import Found, disturb, note
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability

from flujo_client import Pipeline, Step, StepConfig

PAUSE_S = 0.01


class Killed(AbstractCapability):
    """Arms the place at which a worker is killed, when it comes to the request."""

    async def before_model_request(self, ctx, request_context):
        (folder() / "asking").write_text(str(os.getpid()))
        disturb(str(ctx.prompt), "model", 1 + len(request_context.messages) // 2)
        return request_context

    async def before_tool_execute(self, ctx, *, call, tool_def, args):
        if not str(ctx.prompt).endswith(":during"):
            disturb(str(ctx.prompt), "tool", number_of(args["turn"], args["place"]))
        return args


def number_of(turn, place):
    """Return which of the 35 calls this is."""
    return (turn - 1) // 2 * 6 + (place + 1 if turn % 2 else 6)


async def look(ctx: RunContext[Found], turn: int, place: int) -> int:
    """Look something up, and write it into the pipeline's context."""
    note("tool", turn, place, os.getpid())
    ctx.deps.places.append(turn * 100 + place)
    await asyncio.sleep(PAUSE_S * (1 + place))
    if str(ctx.prompt).endswith(":during"):
        disturb(str(ctx.prompt), "tool", number_of(turn, place))
    return turn * 100 + place


agent = Agent("openai-chat:scripted", name="researcher", tools=[look], deps_type=Found, capabilities=[Killed()])
research = Pipeline(
    [Step("research", agent, config=StepConfig(durable=True, max_retries=2, timeout_s=300))], context_model=Found
)
