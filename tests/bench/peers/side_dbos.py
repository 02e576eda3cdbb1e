"""DBOS: a workflow with a step for each of ours, started directly in the client's process, which is its quickest way.

A killed process is replaced by another one with the same executor id, which recovers its workflows when it is launched.
"""

from __future__ import annotations

import asyncio
import os

from dbos import DBOS, SetWorkflowID

from tests.bench.peers.peer import Peer, main, note

JOURNAL = "FLUJO_BENCH_JOURNAL"


@DBOS.step()
async def nothing() -> int:
    return 0


@DBOS.workflow()
async def line(steps: int) -> None:
    for _ in range(steps):
        await nothing()


@DBOS.workflow()
async def fan(branches: int) -> None:
    await asyncio.gather(*(nothing() for _ in range(branches)))


@DBOS.workflow()
async def linger(journal: str) -> None:
    await note(journal)


class Dbos(Peer):
    workers = 0

    def launch(self, executor: str) -> None:
        url = self.database.replace("postgresql://", "postgresql+psycopg://")
        settings = {"name": "bench", "system_database_url": url, "executor_id": executor, "log_level": "ERROR"}
        DBOS(config={**settings, "run_admin_server": False, "application_version": "1"})
        DBOS.launch()

    async def open(self) -> None:
        self.launch("client")

    async def lines(self, runs: int, steps: int) -> None:
        handles = [await DBOS.start_workflow_async(line, steps) for _ in range(runs)]
        await asyncio.gather(*(handle.get_result() for handle in handles))

    async def fan(self, branches: int) -> None:
        await (await DBOS.start_workflow_async(fan, branches)).get_result()

    async def linger(self, journal: str) -> None:
        os.environ[JOURNAL] = journal
        self.processes.start()

    async def work(self) -> None:
        journal = os.environ[JOURNAL]
        self.launch("worker")
        with SetWorkflowID(journal):
            handle = await DBOS.start_workflow_async(linger, journal)
        await handle.get_result()


if __name__ == "__main__":
    main(Dbos(), "tests.bench.peers.side_dbos")
