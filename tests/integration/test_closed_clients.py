"""A client that is closed says so, also to those that still wait through it."""

import asyncio

import pytest

from flujo_client import AsyncFlujoClient, FlujoClient, Pipeline, Step
from flujo_client.errors import ClientError
from tests.support.fleet import PATIENCE_S

pytestmark = pytest.mark.services

END = "UPDATE flujo_runs SET status = 'cancelled', ended_at = now() WHERE id = %(run)s RETURNING pg_notify('flujo_runs', id)"
CLOSED = "this client is closed"


def ship(data):
    return data


fine = Pipeline([Step("ship", ship)])


async def read(events):
    return [each async for each in events]


WAITS = {
    "result": lambda run: run.result(),
    "follow": lambda run: read(run.follow()),
    "stream": lambda run: read(run.stream()),
}


@pytest.mark.parametrize("wait", WAITS)
def test_those_that_wait_end_once_their_client_is_closed(site, wait):
    """They repeated their request without a pause and lost their cancel, so `asyncio.run` did not end."""

    async def close():
        async with AsyncFlujoClient(site.settings) as client:
            run = await client.enqueue(fine, 1, stream=True)
            waiting = asyncio.create_task(WAITS[wait](run))
            await asyncio.sleep(0.2)
        await asyncio.to_thread(site.rows, END, run=run.id)
        await waiting

    with pytest.raises(ClientError, match=CLOSED):
        asyncio.run(asyncio.wait_for(close(), PATIENCE_S))


@pytest.mark.parametrize("is_used", [True, False])
def test_a_closed_client_does_not_connect_again(site, is_used):
    async def closed():
        client = AsyncFlujoClient(site.settings)
        if is_used:
            await client.list_runs()
        await client.close()
        await client.list_runs()

    with pytest.raises(ClientError, match=CLOSED):
        asyncio.run(closed())
    client = FlujoClient(site.settings)
    if is_used:
        client.list_runs()
    client.close()
    with pytest.raises(ClientError, match=CLOSED):
        client.list_runs()
