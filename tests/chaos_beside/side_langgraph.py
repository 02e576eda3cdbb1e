"""LangGraph with checkpoints in Postgres: a graph of three nodes, durability "sync".

LangGraph does not run threads on workers, so this module adds the loop that a team would write: a table of threads, which workers claim with
a lease, and invoke until they have ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack, suppress
from typing import TypedDict

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from steps import CONCURRENCY, DATABASE, LEASE_S, PAUSE_S, STEPS, STOP_S, main, perform, serve, write

URL = os.environ[DATABASE]
THREADS = "CREATE TABLE threads (run text PRIMARY KEY, state text NOT NULL DEFAULT 'pending', owner text, lease_until timestamptz)"
ADD = "INSERT INTO threads (run) VALUES (%s)"
CLAIM = f"""
    UPDATE threads SET owner = %s, lease_until = now() + interval '{LEASE_S} seconds' WHERE run = (
        SELECT run FROM threads WHERE state = 'pending' AND (lease_until IS NULL OR lease_until < now())
        ORDER BY lease_until NULLS FIRST LIMIT 1 FOR UPDATE SKIP LOCKED
    ) RETURNING run
"""
RENEW = f"UPDATE threads SET lease_until = now() + interval '{LEASE_S} seconds' WHERE owner = %s AND state = 'pending' AND lease_until > now()"
FINISH = "UPDATE threads SET state = 'ended' WHERE run = %s AND owner = %s"
RELEASE = "UPDATE threads SET lease_until = NULL WHERE run = %s AND owner = %s AND state = 'pending'"


class State(TypedDict):
    run: str
    given: str


def graph():
    drawn = StateGraph(State)
    names = [f"act{step}" for step in range(STEPS)]
    for step, name in enumerate(names):

        async def act(state: State, step=step):
            return {"given": await asyncio.to_thread(perform, state["run"], step, state["given"])}

        drawn.add_node(name, act)
    for before, after in zip([START, *names], [*names, END], strict=True):
        drawn.add_edge(before, after)
    return drawn


class Supervisor:
    """Claims threads, and invokes each until it has ended."""

    def __init__(self, pool, compiled):
        self._pool, self._compiled, self._me = pool, compiled, f"{os.getpid()}"
        self._stopped = asyncio.Event()

    async def run(self):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stopped.set)
        renewing = asyncio.create_task(self._renew())
        slots = [asyncio.create_task(self._slot()) for _ in range(CONCURRENCY)]
        await self._stopped.wait()
        await asyncio.wait(slots, timeout=STOP_S)
        renewing.cancel()

    async def _slot(self):
        while not self._stopped.is_set():
            run = None
            with suppress(psycopg.Error):
                run = next(iter(await self._execute(CLAIM, self._me)), {}).get("run")
            if run is None:
                await asyncio.sleep(PAUSE_S)
            else:
                await self._invoke(run)

    async def _invoke(self, run):
        thread = {"configurable": {"thread_id": run}}
        try:
            known = await self._compiled.checkpointer.aget_tuple(thread)
            await self._compiled.ainvoke(None if known else {"run": run, "given": ""}, thread, durability="sync")
            await self._execute(FINISH, run, self._me)
        except Exception as error:  # noqa: BLE001 - a supervisor tries again, whatever it was
            print(f"{run}: {error!r}", flush=True)
            with suppress(psycopg.Error):
                await self._execute(RELEASE, run, self._me)

    async def _renew(self):
        while True:
            await asyncio.sleep(LEASE_S / 3)
            with suppress(psycopg.Error):
                await self._execute(RENEW, self._me)

    async def _execute(self, sql, *values):
        async with self._pool.connection() as connection:
            cursor = await connection.execute(sql, values)
            return await cursor.fetchall() if cursor.description else []


async def work():
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncExitStack() as stack:
        pool = AsyncConnectionPool(
            URL,
            min_size=2,
            max_size=CONCURRENCY + 2,
            kwargs=settings,
            open=False,
            check=AsyncConnectionPool.check_connection,
        )
        await stack.enter_async_context(pool)
        await Supervisor(pool, graph().compile(checkpointer=AsyncPostgresSaver(pool))).run()
        os._exit(0)  # a thread that still runs a step would keep the process


def prepare():
    with PostgresSaver.from_conn_string(URL) as saver:
        saver.setup()
    write(THREADS)


def enqueue(run):
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute(ADD, (run,))


if __name__ == "__main__":
    main(prepare=prepare, client=lambda: serve(enqueue), worker=lambda _slot: asyncio.run(work()))
