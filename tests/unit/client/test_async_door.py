"""How the async client waits."""

import asyncio
from contextlib import contextmanager

import pytest

from flujo_client.gateway import async_door


def test_a_cancel_that_comes_together_with_the_wake_is_not_lost():
    """`asyncio.wait_for` of Python 3.11 returns instead, and whoever reads in a loop goes on."""
    wakes = []

    @contextmanager
    def listen(wake):
        wakes.append(wake)
        yield

    async def cancel():
        waiting = asyncio.create_task(async_door._wait(listen, 60))
        await asyncio.sleep(0.01)
        wakes[0]()
        await asyncio.sleep(0)
        waiting.cancel()
        await waiting

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
