"""LangGraph with checkpoints in Postgres: a node for each step, durability "sync", in the client's process, ten connections.

No one supervises its runs: for W7 the process that is started again invokes the graph's thread again.
"""

from __future__ import annotations

import asyncio
import operator
import os
from typing import Annotated, Any, TypedDict
from uuid import uuid4

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from tests.bench.peers.peer import Peer, main, note
from tests.bench.workloads import W1_STEPS, W2_STEPS

JOURNAL = "FLUJO_BENCH_JOURNAL"


class State(TypedDict):
    value: int


class Joined(TypedDict):
    branches: int
    parts: Annotated[list[int], operator.add]


async def nothing(_state: State) -> dict[str, int]:
    return {"value": 0}


async def part(_state: Any) -> dict[str, list[int]]:
    return {"parts": [0]}


async def join(_state: Joined) -> dict[str, list[int]]:
    return {"parts": []}


def line(steps: int) -> StateGraph:
    graph = StateGraph(State)
    names = [f"s{number}" for number in range(steps)]
    for name, before in zip(names, [START, *names], strict=False):
        graph.add_node(name, nothing)
        graph.add_edge(before, name)
    graph.add_edge(names[-1], END)
    return graph


def fan() -> StateGraph:
    graph = StateGraph(Joined)
    graph.add_node("part", part)
    graph.add_node("join", join)
    graph.add_conditional_edges(START, lambda state: [Send("part", state)] * state["branches"], ["part"])
    graph.add_edge("part", "join")
    graph.add_edge("join", END)
    return graph


def lingering() -> StateGraph:
    async def linger(_state: State) -> dict[str, int]:
        await note(os.environ[JOURNAL])
        return {"value": 0}

    graph = StateGraph(State)
    graph.add_node("linger", linger)
    graph.add_edge(START, "linger")
    graph.add_edge("linger", END)
    return graph


class LangGraph(Peer):
    workers = 0

    async def open(self) -> None:
        settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        self.pool = AsyncConnectionPool(self.database, min_size=10, max_size=10, kwargs=settings, open=False)
        await self.pool.open()
        self.saver = AsyncPostgresSaver(self.pool)
        await self.saver.setup()
        self.compiled = {n: line(n).compile(checkpointer=self.saver) for n in (2, W1_STEPS, W2_STEPS)}
        self.fanning = fan().compile(checkpointer=self.saver)

    async def close(self) -> None:
        await self.pool.close()

    async def lines(self, runs: int, steps: int) -> None:
        graph = self.compiled[steps]
        await asyncio.gather(*(graph.ainvoke({"value": 0}, thread(), durability="sync") for _ in range(runs)))

    async def fan(self, branches: int) -> None:
        await self.fanning.ainvoke({"branches": branches, "parts": []}, thread(), durability="sync")

    async def linger(self, journal: str) -> None:
        os.environ[JOURNAL] = journal
        self.processes.start()

    async def work(self) -> None:
        await self.open()
        graph = lingering().compile(checkpointer=self.saver)
        known = await self.saver.aget_tuple(thread(os.environ[JOURNAL]))
        await graph.ainvoke(None if known else {"value": 0}, thread(os.environ[JOURNAL]), durability="sync")


def thread(name: str = "") -> dict[str, Any]:
    return {"configurable": {"thread_id": name or uuid4().hex, "checkpoint_ns": ""}, "recursion_limit": 1000}


if __name__ == "__main__":
    main(LangGraph(), "tests.bench.peers.side_langgraph")
