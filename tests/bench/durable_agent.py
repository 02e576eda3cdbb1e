"""W8's agent: twelve requests and 35 calls of a tool, five at once in every other turn, all answered at once. pydantic-ai and the standard library only."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage

from tests.bench.protocol import Figures

TURNS, AT_ONCE, CALLS = 12, 5, 47
TURNS_OF = {1: 12, 16: 3}
"""How often each is measured in a turn of its side, by how many agents run at once."""


async def scripted(messages: list[Any], _: Any) -> ModelResponse:
    turn = 1 + len(messages) // 2
    usage = RequestUsage(input_tokens=100, output_tokens=10)
    if turn == TURNS:
        return ModelResponse([TextPart("done")], usage=usage)
    places = range(AT_ONCE if turn % 2 else 1)
    calls = [ToolCallPart("look", {"turn": turn, "place": n}, tool_call_id=f"c{turn}_{n}") for n in places]
    return ModelResponse(calls, usage=usage)


async def look(turn: int, place: int) -> dict[str, int]:
    """Look something up."""
    return {"turn": turn, "place": place, "value": turn * 100 + place}


def agent(name: str, *capabilities: Any, tool: Any = look) -> Agent[Any, str]:
    return Agent(FunctionModel(scripted), name=name, tools=[tool], capabilities=list(capabilities))


async def measured(together: int, run: Callable[[], Awaitable[object]]) -> list[float]:
    """Run so many at once; return the seconds of the clock and of the processor that a call took."""
    processor, began = time.process_time(), time.perf_counter()
    await asyncio.gather(*(run() for _ in range(together)))
    took = time.perf_counter() - began, time.process_time() - processor
    return [each / (together * CALLS) for each in took]


def compared(
    together: int, plain: Callable[[], list[float]], durable: Callable[[], list[float]]
) -> tuple[int, Figures]:
    """Measure both by turns; return what a durable call takes above one that is not."""
    plain(), durable()
    pairs = [(plain(), durable()) for _ in range(TURNS_OF[together])]
    above = [[after - before for before, after in zip(*pair, strict=True)] for pair in pairs]
    name = f"W8 {together}"
    kinds = {f"{name} without": [pair[0][1] for pair in pairs]}
    for number, kind in enumerate(("clock", "processor")):
        kinds[f"{name} {kind}"] = [statistics.median(each[number] for each in above)]
    return together * CALLS * len(pairs) * 2, kinds
