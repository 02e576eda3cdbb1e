"""pgtask: a task, with a lease shorter than the default of 30 seconds. A worker takes up what a dead one's lease held."""

import asyncio
import os

from pgtask import Client, TaskRegistry, Worker, get_current_task
from pydantic_ai_harness.pgtask import PGTaskDurability

from flujo_worker.testing.durability import Durable, Notes, serve
from flujo_worker.testing.durability.job import Job

URL = os.environ["DATABASE_URL"].replace("@/", "@localhost/")  # its driver wants a host next to the socket
LEASE_S = 2.0


async def work(perform, job):
    tasks, client = TaskRegistry(queue_name=job), await Client.connect(URL)
    await client.migrate()

    @tasks.task("kit")
    async def research(task, payload):
        return await perform(job, Notes())

    handle = await client.enqueue(research.request({}, max_attempts=5, idempotency_key=job))
    Job.read(job).path("task").write_text(handle.id)
    working = asyncio.ensure_future(Worker(URL, tasks, lease_duration=LEASE_S, poll_interval=0.5).run())
    ended = await handle.result(timeout=60)
    working.cancel()
    if ended is None or ended.state != "succeeded":
        raise RuntimeError(f"the task {'did not end' if ended is None else ended.error}")
    return ended.result


async def ask(question):
    return await get_current_task().wait_for_signal("ask", "approval")


async def answer(job):
    client = await Client.connect(URL)
    await client.task(Job.read(job).path("task").read_text()).signal("approval", True)


if __name__ == "__main__":
    serve(Durable(PGTaskDurability, ask=ask), work=work, answer=answer)
