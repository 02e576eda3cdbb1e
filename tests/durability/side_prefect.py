"""Prefect: a flow, with its server in another process. A flow run whose process died is set to be retried, and run again under its id."""

import os

from prefect import flow, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.flow_engine import run_flow_async
from prefect.flow_runs import pause_flow_run, resume_flow_run
from prefect.states import AwaitingRetry
from pydantic_ai.durable_exec.prefect import PrefectDurability

from flujo_worker.testing.durability import Durable, Notes, serve


async def run_called(client, job):
    [found] = await client.read_flow_runs(flow_run_filter=FlowRunFilter(name={"any_": [job]})) or [None]
    return found


async def work(perform, job):
    @flow(name="kit", flow_run_name=job, persist_result=True)
    async def research():
        return await perform(job, Notes())

    async with get_client() as client:
        if (begun := await run_called(client, job)) is None:
            return await research()
        if begun.state.is_running():
            await client.set_flow_run_state(begun.id, AwaitingRetry(), force=True)
        return await run_flow_async(research, flow_run=await client.read_flow_run(begun.id), parameters={})


async def ask(question):
    return await pause_flow_run(wait_for_input=bool, timeout=60, poll_interval=1, key="approval")


async def answer(job):
    async with get_client() as client:
        await resume_flow_run((await run_called(client, job)).id, run_input={"value": True})


if __name__ == "__main__":
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    serve(Durable(PrefectDurability, inline={"prefect": False}, ask=ask), work=work, answer=answer)
