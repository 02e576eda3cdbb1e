"""Pipelines whose values are secret, for the acceptance tests' workers: small ones, and a context that is stored in parts."""

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import HumanInTheLoopStep, ParallelStep, Pipeline, Step, StepConfig, WaitForEvent

MARK = "Ada Lovelace, born 1815"
ROWS = 12_000


class File(BaseModel):
    """A context above the size from which values are stored in parts."""

    name: str = ""
    rows: list[str] = []
    count: int = 0


def read(name: str, *, context: File) -> str:
    context.rows = [f"{name} {number}" for number in range(ROWS)]
    context.name = name
    return name


def count(name: str, *, context: File) -> str:
    context.count = len(context.rows)
    return name


def echo(name: str) -> str:
    return name


async def asked(messages, info):
    """Call the tool with the secret, and answer with what that returned."""
    if isinstance(messages[-2] if len(messages) > 1 else None, ModelResponse):
        return ModelResponse([TextPart(messages[-1].parts[0].content.partition("|")[0])])
    return ModelResponse([ToolCallPart("look", {"name": messages[0].parts[-1].content}, tool_call_id="c1")])


def look(name: str) -> str:
    """Return more than is stored in a row."""
    return name + "|" + "".join(f"{name} {number * 7919 % 10007}" for number in range(9000))


agent = Agent(FunctionModel(asked), name="secretive", tools=[look])

file = Pipeline(
    [
        Step("read", read),
        Step("count", count),
        Step("look", agent, config=StepConfig(durable=True, blob_threshold_bytes=1000)),
        ParallelStep("both", branches={"left": Step("left", echo), "right": Step("right", echo)}),
        WaitForEvent("go"),
        HumanInTheLoopStep("ask", "May it go out?"),
        Step("end", echo),
    ],
    context_model=File,
)
