"""Handing back at shutdown frees the slot of every message, also of one that has only just arrived."""

import asyncio
import threading

import pytest

from flujo_worker.engine.engine import Engine
from tests.support.fleet import wait_until


@pytest.fixture
def engine():
    engine = Engine()
    yield engine
    engine.close()


def test_a_message_that_arrives_at_the_same_moment_frees_its_slot(engine):
    begun, freed, busy = threading.Event(), threading.Event(), threading.Event()

    async def carry_out():
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            freed.set()

    engine.inbox.put(busy.wait)  # what follows reaches the loop in one batch
    engine.inbox.put(lambda: engine.begin(carry_out()))
    engine.drop()
    busy.set()
    assert freed.wait(60)
    assert begun.is_set()
    wait_until(lambda: not engine.carries_one())  # which it notices after the coroutine's last statement
