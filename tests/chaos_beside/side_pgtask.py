"""pgtask: a durable task of three steps. The lease and the poll are shorter than the defaults of 30 seconds."""

import asyncio
import os
import signal

from pgtask import Client, Task, TaskRegistry, Worker
from steps import CONCURRENCY, DATABASE, LEASE_S, STEPS, STOP_S, main, perform, serve

URL = os.environ[DATABASE].replace("@/", "@localhost/")  # its driver wants a host next to the socket
tasks = TaskRegistry(queue_name="three")


@tasks.task("three")
async def three(task: Task, payload):
    given = ""
    for step in range(STEPS):

        async def act(step=step, given=given):
            return await asyncio.to_thread(perform, payload["run"], step, given)

        given = await task.step(f"act{step}", act)


async def set_up():
    await (await Client.connect(URL)).migrate()
    os._exit(0)  # its threads sometimes abort a process that ends as usual


async def work():
    worker = Worker(
        URL, tasks, concurrency=CONCURRENCY, lease_duration=LEASE_S, poll_interval=1.0, shutdown_grace=STOP_S
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.shutdown)
    await worker.run()


def client():
    with asyncio.Runner() as runner:
        connected = runner.run(Client.connect(URL))

        async def enqueue(run):
            await connected.enqueue(three.request({"run": run}, max_attempts=20))

        serve(lambda run: runner.run(enqueue(run)))


if __name__ == "__main__":
    main(prepare=lambda: asyncio.run(set_up()), client=client, worker=lambda _slot: asyncio.run(work()))
