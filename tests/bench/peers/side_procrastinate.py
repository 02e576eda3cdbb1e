"""Procrastinate: a job for each step, which defers the next; a counter's row joins. Two worker processes with ten jobs at once.

Jobs of a lost worker are retried as its documentation shows, by asking for stalled jobs; here each second.
"""

from __future__ import annotations

import asyncio
import logging
import os

import procrastinate

from tests.bench.peers.peer import Peer, main, note, poll
from tests.bench.protocol import DATABASE

COUNTERS = "CREATE TABLE IF NOT EXISTS bench_counters (name text PRIMARY KEY, missing integer NOT NULL)"
BEGIN = (
    "INSERT INTO bench_counters VALUES (%(name)s, %(missing)s) ON CONFLICT (name) DO UPDATE SET missing = %(missing)s"
)
COUNT = "UPDATE bench_counters SET missing = missing - 1 WHERE name = %(name)s"
MISSING = "SELECT missing FROM bench_counters WHERE name = %(name)s"
logging.getLogger("procrastinate").setLevel("ERROR")  # its warning that the app is in the main module
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ[DATABASE]))


@app.task(name="hop")
async def hop(left: int) -> None:
    if left > 1:
        await hop.defer_async(left=left - 1)
    else:
        await app.connector.execute_query_async(COUNT, name="lines")


@app.task(name="branch")
async def branch() -> None:
    await app.connector.execute_query_async(COUNT, name="fan")


@app.task(name="linger", retry=True)
async def linger(journal: str) -> None:
    await note(journal)


class Procrastinate(Peer):
    async def prepare(self) -> None:
        async with app.open_async():
            known = await app.connector.execute_query_one_async(
                "SELECT to_regclass('procrastinate_jobs')::text AS name"
            )
            if known["name"] is None:
                await app.schema_manager.apply_schema_async()
            await app.connector.execute_query_async(COUNTERS)

    async def open(self) -> None:
        await app.open_async()

    async def close(self) -> None:
        await app.close_async()

    async def counted(self, name: str) -> bool:
        return not (await app.connector.execute_query_one_async(MISSING, name=name))["missing"]

    async def lines(self, runs: int, steps: int) -> None:
        await app.connector.execute_query_async(BEGIN, name="lines", missing=runs)
        for _ in range(runs):
            await hop.defer_async(left=steps)
        await poll(lambda: self.counted("lines"))

    async def fan(self, branches: int) -> None:
        await app.connector.execute_query_async(BEGIN, name="fan", missing=branches)
        await branch.batch_defer_async(*({} for _ in range(branches)))
        await poll(lambda: self.counted("fan"))

    async def linger(self, journal: str) -> None:
        await linger.defer_async(journal=journal)

    async def work(self) -> None:
        async with app.open_async():
            retrying = asyncio.create_task(retry_stalled())
            await app.run_worker_async(concurrency=10, install_signal_handlers=False)
            retrying.cancel()


async def retry_stalled() -> None:
    while True:
        for job in await app.job_manager.get_stalled_jobs():
            await app.job_manager.retry_job(job)
        await asyncio.sleep(1)


if __name__ == "__main__":
    main(Procrastinate(), "tests.bench.peers.side_procrastinate")
