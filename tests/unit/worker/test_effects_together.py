"""How attempts share threads: concurrent requests to one service are one call, and few call the store alone at the same time."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from flujo_worker.engine.engine import Engine, LoopEffects
from flujo_worker.runtime.effects import BlockingEffects


class Service:
    """Doubles numbers, and remembers what it was asked for in one call; it answers the first call when `free` is set."""

    def __init__(self):
        self.asked, self.asked_first, self.free = [], threading.Event(), threading.Event()

    def double(self, items):
        self.asked.append(list(items))
        self.asked_first.set()
        assert self.free.wait(60)
        if None in items:
            raise ValueError("nothing to double")
        return [2 * each for each in items]


@pytest.fixture
def effects():
    engine, threads = Engine(), ThreadPoolExecutor(4)
    yield LoopEffects(engine, None, None, threads, None, at_once=1)
    threads.shutdown()
    engine.close()


def test_what_comes_while_a_call_is_under_way_is_the_next_call(effects):
    service = Service()

    async def ask():
        first = asyncio.ensure_future(effects.together(service.double, 0))
        await effects.call(service.asked_first.wait, 10)
        rest = [asyncio.ensure_future(effects.together(service.double, each)) for each in range(1, 6)]
        await asyncio.sleep(0)
        service.free.set()
        return await asyncio.gather(first, *rest)

    assert effects.run(ask()) == [0, 2, 4, 6, 8, 10]
    assert service.asked == [[0], [1, 2, 3, 4, 5]]


def test_services_do_not_wait_for_each_other(effects):
    slow, quick = Service(), Service()
    quick.free.set()

    async def ask():
        waiting = asyncio.ensure_future(effects.together(slow.double, 1))
        answer = await effects.together(quick.double, 2)
        slow.free.set()
        return answer, await waiting

    assert effects.run(ask()) == (4, 2)


def test_an_error_is_for_all_who_asked_in_that_call_and_for_no_one_later(effects):
    service = Service()
    service.free.set()

    async def ask():
        both = await asyncio.gather(
            effects.together(service.double, None), effects.together(service.double, 1), return_exceptions=True
        )
        return [type(each) for each in both], await effects.together(service.double, 3)

    assert effects.run(ask()) == ([ValueError, ValueError], 6)


class Store:
    """Commits one by one, and remembers how many asked at once at most."""

    def __init__(self):
        self.asking = self.most = 0

    def commit(self, decision):
        self.asking += 1
        self.most = max(self.most, self.asking)
        threading.Event().wait(0.01)
        self.asking -= 1
        return decision


class NoGroups:
    async def commit(self, decision):
        return None


def test_those_who_ask_the_store_alone_leave_half_of_its_connections_to_others():
    engine, threads, store = Engine(), ThreadPoolExecutor(8), Store()
    effects = LoopEffects(engine, SimpleNamespace(attempts=store), NoGroups(), threads, None, at_once=4)

    async def commit_all():
        return await asyncio.gather(*(effects.commit(number) for number in range(8)))

    assert effects.run(commit_all()) == list(range(8))
    assert store.most == 2
    threads.shutdown()
    engine.close()


def test_without_a_loop_each_asks_for_itself():
    service = Service()
    service.free.set()
    effects = BlockingEffects(None, None)
    assert [effects.run(effects.together(service.double, each)) for each in (1, 2)] == [2, 4]
    assert service.asked == [[1], [2]]
