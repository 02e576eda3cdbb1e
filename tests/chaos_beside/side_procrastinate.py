"""Procrastinate: a job for each step, which defers the next. Stalled jobs are retried by the documented periodic task."""

import asyncio
import logging
import os

import procrastinate
from steps import CONCURRENCY, DATABASE, LEASE_S, STEPS, STOP_S, main, perform, serve

logging.getLogger("procrastinate").setLevel("ERROR")  # it warns that the app is in the main module
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ[DATABASE]))
retry = procrastinate.RetryStrategy(max_attempts=20, wait=1)


@app.task(name="act", retry=retry)
async def act(run, step, given):
    mine = await asyncio.to_thread(perform, run, step, given)
    if step + 1 < STEPS:
        await act.defer_async(run=run, step=step + 1, given=mine)


@app.periodic(cron="* * * * * */2")
@app.task(name="retry_stalled", queueing_lock="retry_stalled", pass_context=True)
async def retry_stalled(_context, timestamp):
    for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=LEASE_S):
        await app.job_manager.retry_job(job)


async def work():
    async with app.open_async():
        await app.run_worker_async(
            concurrency=CONCURRENCY,
            shutdown_graceful_timeout=STOP_S,
            update_heartbeat_interval=LEASE_S / 3,
            stalled_worker_timeout=LEASE_S,
        )


async def set_up():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


def enqueue(run):
    with app.open():  # anew for each, because the pool of an open app is slow to connect again
        act.defer(run=run, step=0, given="")


if __name__ == "__main__":
    main(prepare=lambda: asyncio.run(set_up()), client=lambda: serve(enqueue), worker=lambda _slot: asyncio.run(work()))
