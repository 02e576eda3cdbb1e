"""pgtask: a durable task with a step for each of ours; two worker processes at its defaults."""

from __future__ import annotations

import asyncio
from typing import Any

from pgtask import Client, Task, TaskRegistry, Worker

from tests.bench.peers.peer import Peer, main, note

tasks = TaskRegistry(queue_name="bench")


async def nothing() -> int:
    return 0


@tasks.task("line")
async def line(task: Task, payload: Any) -> int:
    for number in range(payload["steps"]):
        await task.step(f"s{number}", nothing)
    return 0


@tasks.task("fan")
async def fan(task: Task, payload: Any) -> int:
    return len(await asyncio.gather(*(task.step(f"b{number}", nothing) for number in range(payload["branches"]))))


@tasks.task("linger")
async def linger(_task: Task, payload: Any) -> None:
    await note(payload["journal"])


class Pgtask(Peer):
    async def prepare(self) -> None:
        await (await Client.connect(self.with_host)).migrate()

    async def open(self) -> None:
        self.client = await Client.connect(self.with_host)

    async def lines(self, runs: int, steps: int) -> None:
        handles = [await self.client.enqueue(line.request({"steps": steps})) for _ in range(runs)]
        await asyncio.gather(*(handle.result(timeout=120) for handle in handles))

    async def fan(self, branches: int) -> None:
        handle = await self.client.enqueue(fan.request({"branches": branches}))
        await handle.result(timeout=120)

    async def linger(self, journal: str) -> None:
        await self.client.enqueue(linger.request({"journal": journal}))

    async def work(self) -> None:
        await Worker(self.with_host, tasks).run()


if __name__ == "__main__":
    main(Pgtask(), "tests.bench.peers.side_pgtask")
