"""The agents that are killed. What a model answers follows from the conversation, so that a disturbed run ends as an undisturbed one.

In: how an engine makes an agent durable. Out: a coroutine function that the engine runs in its workflow, flow, task or step.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelRetry, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage, RunUsage

from flujo_worker.testing.durability.job import PAUSE_S, Job

_ANSWERS: Final = ("tool-return", "retry-prompt")


class Notes(BaseModel):
    """What tools write into: the dependencies of each agent."""

    places: list[int] = []


@dataclass(frozen=True)
class Durable:
    """How an engine makes agents durable.

    Attributes:
        capability: makes the capability of an agent; None for agents that are not durable.
        tool: makes a function one whose calls are on record, where the capability does not do so.
        inline: the metadata of a tool that is not to be recorded itself, because it only runs another agent.
        ask: asks a person in the middle of the workflow, where the capability does not do so.
    """

    capability: Callable[[], Any] | None = None
    tool: Callable[[Any], Any] = lambda function: function
    inline: Mapping[str, Any] | None = None
    ask: Callable[[str], Awaitable[bool]] | None = None


class _Turn(NamedTuple):
    """What a model is asked: in which turn, with which prompt, what tools have answered, and how often it was asked this."""

    number: int
    prompt: str
    found: list[Any]
    nth: int


Run = Callable[[Notes, RunUsage], Awaitable[Any]]
Perform = Callable[[str, Notes], Awaitable[str]]
Calls = Sequence[tuple[str, int | Callable[[_Turn], int]]]
_job: Job


def workload(name: str, durable: Durable) -> Perform:
    """Build a workload's agents, before the engine starts, and return the function that it runs.

    That takes the job's name and what tools write into, and returns what became of it, as JSON.
    """
    run = _WORKLOADS[name](durable)

    async def perform(job: str, notes: Notes) -> str:
        global _job  # noqa: PLW0603 - a process performs one job, and engines run calls in contexts of their own
        _job = Job.read(job)
        _job.note("attempt")
        usage = RunUsage()
        output = await run(notes, usage)
        counted = [usage.requests, usage.input_tokens]
        return json.dumps({"output": output, "notes": sorted(notes.places), "usage": counted})

    return perform


class _Watch(AbstractCapability[Any]):
    """Notes when an agent asks for something, and when it has the answer, whether from record or not."""

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        for part in request_context.messages[-1].parts:
            if part.part_kind in _ANSWERS and part.tool_call_id:  # a tool that refuses has no hook
                _job.note(f"had {part.tool_call_id}")
        _job.at(_request(ctx, request_context.messages), "asked")
        return request_context

    async def after_model_request(self, ctx: RunContext[Any], *, request_context: Any, response: Any) -> Any:
        _job.at(_request(ctx, request_context.messages), "had")
        return response

    async def before_tool_execute(self, ctx: RunContext[Any], *, call: Any, args: Any, **_: Any) -> Any:  # noqa: ARG002
        _job.at(call.tool_call_id, "asked")
        return args

    async def after_tool_execute(self, ctx: RunContext[Any], *, call: Any, result: Any, **_: Any) -> Any:  # noqa: ARG002
        _job.at(call.tool_call_id, "had")
        return result


def _agent(name: str, durable: Durable, turns: Sequence[Calls], tools: Sequence[Any] = (), **rest: Any) -> Any:
    """Make an agent whose model calls these tools in each turn, and ends with what they have answered."""

    async def answer(messages: list[ModelMessage], _: Any) -> ModelResponse:
        call, found = _request(name, messages), _found(messages)
        nth = 1 + _job.count(f"begun {call}")
        number, prompt = 1 + len(messages) // 2, str(messages[0].parts[-1].content)  # type: ignore[union-attr]
        await _job.perform(call, PAUSE_S * (6 if (call, nth) == ("twin 1", 1) else 1))
        usage, turn = RequestUsage(input_tokens=100 + number), _Turn(number, prompt, found, nth)
        if number > len(turns):
            return ModelResponse([TextPart(json.dumps([str(each) for each in found]))], usage=usage)
        made = [(tool, n(turn) if callable(n) else n) for tool, n in turns[number - 1]]
        return ModelResponse([ToolCallPart(tool, {"n": n}, f"{tool} {n}") for tool, n in made], usage=usage)

    engine = [] if durable.capability is None else [durable.capability()]
    capabilities = [*engine, _Watch()]
    return Agent(FunctionModel(answer), name=name, tools=tools, deps_type=Notes, capabilities=capabilities, **rest)


def _request(of: Any, messages: Sequence[ModelMessage]) -> str:
    """Name a request: by the tool's answer before it too, which tells equal agents apart."""
    name = of if isinstance(of, str) else of.agent.name
    return " ".join(map(str, [name, 1 + len(messages) // 2, *(_found(messages) if name == "twin" else ())]))


def _found(messages: Sequence[ModelMessage]) -> list[Any]:
    """Return what tools have answered, or why they did not."""
    return [part.content for each in messages for part in each.parts if part.part_kind in _ANSWERS]


def _tool(durable: Durable, name: str, does: Callable[[RunContext[Notes], int], Any] = lambda _, n: n) -> Any:
    """Make a tool. Those that run at once end in one order the first time, and in the other the next."""

    async def tool(ctx: RunContext[Notes], n: int) -> Any:
        await _job.perform(f"{name} {n}", PAUSE_S * (3 - n % 3 if _job.attempt == 1 else 1 + n % 3))
        return does(ctx, n)

    tool.__name__ = tool.__qualname__ = name
    return durable.tool(tool)


def _refuse(_: RunContext[Notes], n: int) -> Any:
    raise ModelRetry(f"not {n}") if n == 1 else ToolFailed(f"no {n}")


def _single(agent: Any, prompt: Callable[[], str] = lambda: "0") -> Run:
    async def run(notes: Notes, usage: RunUsage) -> Any:
        return (await agent.run(prompt(), deps=notes, usage=usage)).output

    return run


def _three(tool: str) -> list[Calls]:
    """Call a tool three times at once, then once."""
    return [[(tool, 3), (tool, 4), (tool, 5)], [(tool, 6)]]


def _looks(durable: Durable) -> Run:
    return _single(_agent("looker", durable, _three("look"), [_tool(durable, "look")]))


def _marks(durable: Durable) -> Run:
    tool = _tool(durable, "mark", lambda ctx, n: ctx.deps.places.append(n))
    return _single(_agent("marker", durable, _three("mark"), [tool]))


def _instructed(durable: Durable) -> Run:
    """Build an agent whose instructions are others in each process, as those that name the time."""
    agent = _agent("looker", durable, _three("look"), [_tool(durable, "look")])
    agent.instructions(lambda: f"This is process {_job.attempt}.")
    return _single(agent)


def _reworded(durable: Durable) -> Run:
    """Build an agent whose question is another one in each process, as after a deploy: an answer to the first one would be wrong."""
    agent = _agent("reader", durable, [[("read", lambda turn: int(turn.prompt))]], [_tool(durable, "read")])
    run = _single(agent, lambda: str(_job.attempt))

    async def is_of_this_process(notes: Notes, usage: RunUsage) -> bool:
        return bool(await run(notes, usage) == json.dumps([str(_job.attempt)]))

    return is_of_this_process


def _refuses(durable: Durable) -> Run:
    """Build an agent whose tools refuse: one asks for other arguments, one has failed. Both are answers, which a replay gives again."""
    tools = [_tool(durable, "refuse", _refuse), _tool(durable, "fail", _refuse)]
    return _single(_agent("refused", durable, [[("refuse", 1)], [("fail", 2)]], tools))


def _buys(durable: Durable) -> Run:
    """Build an agent with a tool that needs approval, beside one that does not."""
    output: Any = [str, DeferredToolRequests]
    agent = _agent("buyer", durable, [[("look", 1), ("buy", 500)]], [_tool(durable, "look")], output_type=output)
    agent.tool(requires_approval=True)(_tool(durable, "buy"))

    async def run(notes: Notes, usage: RunUsage) -> Any:
        result = await agent.run("0", deps=notes, usage=usage)
        while isinstance(result.output, DeferredToolRequests):
            answers = {call.tool_call_id: await _asked(durable, call.tool_name) for call in result.output.approvals}
            given, history = DeferredToolResults(approvals=dict(answers)), result.all_messages()
            result = await agent.run(message_history=history, deferred_tool_results=given, deps=notes, usage=usage)
        return result.output

    return run


async def _asked(durable: Durable, question: str) -> bool:
    if not _job.path("answered").exists():
        _job.note("asks")
    return True if durable.ask is None else await durable.ask(question)


def _hires(durable: Durable) -> Run:
    """Build an agent with another one as a tool."""
    inner = _agent("inner", durable, _three("look"), [_tool(durable, "look")])

    async def hire(ctx: RunContext[Notes], n: int) -> str:
        return str((await inner.run(str(n), deps=ctx.deps, usage=ctx.usage)).output)

    outer = _agent("outer", durable, [[("hire", 1)]])
    outer.tool(metadata=durable.inline)(hire)
    return _single(outer)


def _serves(durable: Durable) -> Run:
    """Build an agent with a tool of an MCP server."""
    from mcp.server.mcpserver import MCPServer  # type: ignore[import-not-found,unused-ignore]
    from pydantic_ai.mcp import MCPToolset

    async def double(n: int) -> int:
        await _job.perform(f"double {n}", PAUSE_S)
        return 2 * n

    server: Any = MCPServer("doubling")
    server.tool()(double)
    toolset = MCPToolset(server, id="doubling")
    return _single(_agent("doubler", durable, [[("double", 1)], [("double", 2)]], toolsets=[toolset]))


def _twins(durable: Durable) -> Run:
    """Build two equal runs at once, one of which is overtaken: each must keep its own answers."""
    agent = _agent("twin", durable, [[("look", lambda turn: turn.nth)]], [_tool(durable, "look")])

    async def one(notes: Notes, usage: RunUsage) -> bool:
        result = await agent.run("0", deps=notes, usage=usage)
        [call] = [part for each in result.all_messages() for part in each.parts if isinstance(part, ToolCallPart)]
        return bool(result.output == json.dumps([str(call.args_as_dict()["n"])]))

    async def run(notes: Notes, usage: RunUsage) -> Any:
        return await asyncio.gather(one(notes, usage), one(notes, usage))

    return run


_WORKLOADS: Final[dict[str, Callable[[Durable], Run]]] = {
    made.__name__[1:]: made
    for made in (_looks, _marks, _instructed, _reworded, _refuses, _buys, _hires, _serves, _twins)
}
