"""Calls on the event loop: what cancels them, and what they leave behind in memory."""

import asyncio
import gc
import threading
from concurrent.futures import CancelledError

import pytest

from flujo_worker.concurrency.event_loop import Loop


@pytest.fixture
def loop():
    loop = Loop()
    yield loop
    loop.close()


async def answer():
    return 1


async def fail():
    raise ValueError("no")


def test_calls_leave_nothing_to_the_garbage_collector(loop):
    """Workers make two for each attempt: cycles would be searched for, with all attempts in flight."""

    def call_many():
        for _ in range(100):
            assert loop.submit(answer()).result(60) == 1
            assert isinstance(loop.submit(fail()).exception(10), ValueError)
        loop.submit(asyncio.sleep(0)).result(60)  # the ones before have ended

    call_many()
    gc.collect()
    gc.disable()
    try:
        call_many()
        assert gc.collect() < 100  # a cycle in each call would be thousands
    finally:
        gc.enable()


def test_cancelling_the_future_cancels_the_coroutine(loop):
    begun, ended = threading.Event(), threading.Event()

    async def wait():
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    future = loop.submit(wait())
    assert begun.wait(60)
    assert future.cancel()
    assert ended.wait(60)
    with pytest.raises(CancelledError):
        future.result(0)


def test_cancelling_before_the_coroutine_begins_means_that_it_never_does(loop):
    release, begun = threading.Event(), threading.Event()

    async def block():
        release.wait(10)

    async def begin():
        begun.set()

    blocking = loop.submit(block())
    future = loop.submit(begin())
    assert future.cancel()
    release.set()
    blocking.result(60)
    loop.submit(answer()).result(60)
    assert not begun.is_set()


def test_a_loop_that_its_code_stops_continues(loop):
    """Else every call of the process waits for ever."""

    async def stop():
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        return await answer()

    assert loop.submit(stop()).result(timeout=60) == loop.submit(answer()).result(timeout=60)
