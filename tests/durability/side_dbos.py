"""DBOS: a workflow whose tools are steps. A process that begins with the same executor and version goes on with what a dead one left."""

import os

from dbos import DBOS, DBOSClient, SetWorkflowID
from pydantic_ai.durable_exec.dbos import DBOSDurability

from flujo_worker.testing.durability import Durable, Notes, serve

URL = os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://")
TOPIC = "approval"


async def work(perform, job):
    DBOS(config={"name": "kit", "system_database_url": URL, "application_version": "1", "log_level": "ERROR"})

    @DBOS.workflow(name="kit")
    async def research():
        return await perform(job, Notes())

    DBOS.launch()
    with SetWorkflowID(job):
        handle = await DBOS.start_workflow_async(research)
    return await handle.get_result()


async def ask(question):
    return await DBOS.recv_async(TOPIC, timeout_seconds=60)


async def answer(job):
    await DBOSClient(system_database_url=URL).send_async(job, True, TOPIC)


if __name__ == "__main__":
    serve(Durable(DBOSDurability, tool=DBOS.step(), ask=ask), work=work, answer=answer)
