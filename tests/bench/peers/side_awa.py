"""awa: a job for each step, which inserts the next; a counter's row joins. Two worker processes with ten jobs at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import awa
from psycopg_pool import AsyncConnectionPool

from tests.bench.peers.peer import Peer, main, note, poll

COUNTERS = "CREATE TABLE IF NOT EXISTS bench_counters (name text PRIMARY KEY, missing integer NOT NULL)"
BEGIN = "INSERT INTO bench_counters VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET missing = excluded.missing"
COUNT = "UPDATE bench_counters SET missing = missing - 1 WHERE name = %s"
MISSING = "SELECT missing FROM bench_counters WHERE name = %s"


@dataclass
class Hop:
    left: int


@dataclass
class Branch:
    number: int


@dataclass
class Linger:
    journal: str


class Awa(Peer):
    async def connect(self) -> None:
        self.client = awa.AsyncClient(self.with_host)
        self.pool = AsyncConnectionPool(self.database, max_size=10, kwargs={"autocommit": True}, open=False)
        await self.pool.open()

    async def close(self) -> None:
        await self.client.close()
        await self.pool.close()

    async def execute(self, sql: str, *values: object) -> list[tuple]:
        async with self.pool.connection() as connection:
            cursor = await connection.execute(sql, values)
            return await cursor.fetchall() if cursor.description else []

    async def prepare(self) -> None:
        await self.connect()
        await self.client.migrate()
        await self.execute(COUNTERS)

    async def counted(self, name: str) -> bool:
        return not (await self.execute(MISSING, name))[0][0]

    async def lines(self, runs: int, steps: int) -> None:
        await self.execute(BEGIN, "lines", runs)
        for _ in range(runs):
            await self.client.insert(Hop(steps), queue="bench")
        await poll(lambda: self.counted("lines"))

    async def fan(self, branches: int) -> None:
        await self.execute(BEGIN, "fan", branches)
        await self.client.insert_many_copy([Branch(number) for number in range(branches)], queue="bench")
        await poll(lambda: self.counted("fan"))

    async def linger(self, journal: str) -> None:
        await self.client.insert(Linger(journal), queue="bench")

    async def work(self) -> None:
        await self.connect()

        @self.client.task(Hop, queue="bench")
        async def hop(job: awa.Job) -> None:
            if job.args.left > 1:
                await self.client.insert(Hop(job.args.left - 1), queue="bench")
            else:
                await self.execute(COUNT, "lines")

        @self.client.task(Branch, queue="bench")
        async def branch(_job: awa.Job) -> None:
            await self.execute(COUNT, "fan")

        @self.client.task(Linger, queue="bench")
        async def linger(job: awa.Job) -> None:
            await note(job.args.journal)

        await self.client.start([("bench", 10)])
        await asyncio.Event().wait()


if __name__ == "__main__":
    main(Awa(), "tests.bench.peers.side_awa")
