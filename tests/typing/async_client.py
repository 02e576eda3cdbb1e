"""What a type checker accepts of the async client. `# wrong:` marks the lines that it must refuse, with the code of the error."""

from __future__ import annotations

from contextlib import aclosing, closing
from typing import TYPE_CHECKING, assert_type

from flujo_client.api.bulk import RunRequest
from flujo_client.api.handle import AsyncRunHandle, RunHandle
from flujo_client.contract.approval import Approval
from flujo_client.contract.deployment import SchemaVersion
from flujo_client.contract.records import EventRecord, RunRecord
from flujo_client.contract.results import PipelineResult
from flujo_client.contract.stream import StreamEvent
from flujo_client.gateway import requests

if TYPE_CHECKING:
    from flujo_client.api.client import AsyncFlujoClient, FlujoClient


async def accepted(client: AsyncFlujoClient) -> None:
    run = await client.enqueue("shop:pipeline", 1, priority=3, tenant="acme", metadata={"order": 17})
    assert_type(run, AsyncRunHandle)
    assert_type(await client.enqueue_many("shop:pipeline", [1, 2], priority=3), list[AsyncRunHandle])
    await client.enqueue_many("shop:pipeline", [RunRequest(1, idempotency_key="a", limits=None)], tenant="acme")
    assert_type(await run.status(), str)
    assert_type(await run.result(timeout=5), PipelineResult)
    assert_type(await run.resume("yes", step="ask", actor="ana"), Approval)
    assert_type(await run.retry("price", priority=1), AsyncRunHandle)
    assert_type(await client.list_runs(status="failed", limit=5), list[RunRecord])
    assert_type(await client.approvals(tenant="acme"), list[Approval])
    assert_type(await client.ask(requests.schema_version()), SchemaVersion)


async def closed_early(run: AsyncRunHandle, other: RunHandle) -> None:
    async with aclosing(run.stream()) as events, aclosing(run.follow()) as story:
        assert_type(await anext(events), StreamEvent)
        assert_type(await anext(story), EventRecord)
    with closing(other.stream()) as streamed, closing(other.follow()) as followed:
        assert_type(next(streamed), StreamEvent)
        assert_type(next(followed), EventRecord)


def accepted_without_await(client: FlujoClient) -> None:
    assert_type(client.enqueue("shop:pipeline", 1, priority=3), RunHandle)
    assert_type(client.enqueue_many("shop:pipeline", ["a"], metadata={"order": 17}), list[RunHandle])
    assert_type(client.ask(requests.schema_version()), SchemaVersion)


async def refused(client: AsyncFlujoClient, run: AsyncRunHandle) -> None:
    await client.enqueue("shop:pipeline", priority="high")  # wrong: arg-type
    await client.enqueue("shop:pipeline", prioritty=3)  # wrong: call-arg
    await client.enqueue_many("shop:pipeline", [1], idempotency_key="a")  # wrong: call-arg
    await client.enqueue_many("shop:pipeline", [RunRequest(1, connection=None)])  # wrong: call-arg
    await client.enqueue_many("shop:pipeline", [RunRequest(1, priority="high")])  # wrong: arg-type
    await client.list_runs(state="failed")  # wrong: call-arg
    await client.approvals(limit="all")  # wrong: arg-type
    await run.resume("yes", actr="ana")  # wrong: call-arg
    await run.retry(deadline_s="soon")  # wrong: arg-type
