"""Durable agents whose tools ask people, and such whose tools have effects. Each real call leaves a line in the run's file of calls."""

from typing import Any

from durable_pipelines import disturb, note, once
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset

from flujo_client import AgentProcessors, Pipeline, Step, StepConfig, current_unit
from flujo_worker import AgentTool

TURNS = {
    "two": [("send", {"to": "ana"}), ("send", {"to": "bo"}), ("look", {"at": "x"})],
    "inside": [("run_mailer", {"task": "write"}), ("look", {"at": "y"})],
    "elsewhere": [("fetch", {"id": 7})],
    "hurry": [("hurry", {"to": "ana"})],
    "write": [("send", {"to": "inner"})],
}
"""What the model calls, by the prompt."""


async def scripted(messages: list[Any], info: Any) -> ModelResponse:
    prompt, turn = str(messages[0].parts[-1].content).split()[0], 1
    turn += sum(isinstance(each, ModelResponse) for each in messages)
    note("model", prompt, turn)
    disturb(prompt, "model", turn)
    if turn == 1:
        calls = TURNS.get(prompt, [(info.function_tools[0].name, {"to": "ana"})])
        return ModelResponse([ToolCallPart(name, args, tool_call_id=f"c{n}") for n, (name, args) in enumerate(calls)])
    returns = [part.content for each in messages for part in each.parts if isinstance(part, ToolReturnPart)]
    return ModelResponse([TextPart("; ".join(map(str, returns)))])


async def send(to: str) -> str:
    note("send", to)
    return f"sent to {to}"


async def look(at: str) -> str:
    note("look", at)
    return f"seen {at}"


async def effect(ctx: RunContext[Any], to: str) -> str:
    unit = current_unit()
    note("effect", to, unit.effect_id if unit else "-")
    disturb(str(ctx.prompt), "tool", 1)
    return f"done for {to}"


def refuse_once(output: str) -> str:
    if once("refused"):
        raise ValueError("another answer, please")
    return output


def asking(name: str, **metadata: Any) -> Tool:
    return Tool(send, name=name, requires_approval=True, metadata={"flujo": metadata} if metadata else None)


model = FunctionModel(scripted)
mailer = Agent(model, name="mailer", tools=[asking("send")])
fetch = ExternalToolset([ToolDefinition(name="fetch")], id="elsewhere")
tools = [asking("send", effect="once"), asking("hurry", expires_s=1), Tool(look), AgentTool(mailer).as_tool()]
clerk = Agent(model, name="clerk", tools=tools, toolsets=[fetch])
questions = Pipeline([Step("clerk", clerk, config=StepConfig(durable=True, max_retries=0))])


def effects(kind: str) -> Pipeline:
    tool = Tool(effect, metadata={"flujo": {"effect": kind}})
    judged = AgentProcessors(output_processors=[refuse_once])
    config = StepConfig(durable=True, max_retries=2)
    return Pipeline([Step("act", Agent(model, name="actor", tools=[tool]), processors=judged, config=config)])


keyed, once_only = effects("keyed"), effects("once")
