"""What a pipeline costs a process whose attempts arrive before it is loaded: one import, one plan, no claims and no threads meanwhile."""

import asyncio
import sys
import threading
from types import SimpleNamespace

import pytest

from flujo_client.address import new_run_id
from flujo_client.config.manager import Settings
from flujo_client.config.models import SizeLimits
from flujo_client.pipeline.cache import InMemoryCache
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.reference import default_name, load_pipeline
from flujo_client.pipeline.submit import Order, new_run
from flujo_client.plan.plan import Backoff
from flujo_worker.attempts.lease import Lease
from flujo_worker.attempts.perform import Attempts
from flujo_worker.changed_code import code_registry
from flujo_worker.concurrency.event_loop import Loop
from flujo_worker.concurrency.threads import Threads
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.engine.engine import Engine, LoopEffects
from flujo_worker.store.memory.stores import MemoryStores
from flujo_worker.store.memory.tables import Tables
from flujo_worker.user_code.evaluator import Evaluator, user_code_runtime
from flujo_worker.user_code.hooks import HookCaller
from tests.support.builders import member

MANY = 500
SETTINGS = Settings(allowed_imports=("*",))
MODULE = """
import {name}_door
from flujo_client import Pipeline, PipelineContext, Step

{name}_door.enter()

class Basket(PipelineContext):
    prices: list[int] = []

async def price(data):
    return data

pipeline = Pipeline([Step("price", price)], context_model=Basket)
"""


class Door:
    """What a module passes at its import: it counts, and waits until it is open; then it raises `error`, if there is one."""

    def __init__(self):
        self.times, self.is_reached, self.is_open, self.error = 0, threading.Event(), threading.Event(), None

    def enter(self):
        self.times += 1
        self.is_reached.set()
        assert self.is_open.wait(60)
        if self.error is not None:
            raise self.error


class Groups:
    """Claims and merges at once, as groups on the loop do: without a thread."""

    budgets_locked_at = float("-inf")

    def __init__(self, stores):
        self._stores = stores

    async def claim(self, key, worker, *, fan_outs, plan, to_reserve):
        return self._stores.attempts.claim(
            key, worker, fan_outs=fan_outs, plan=plan, to_reserve=to_reserve, max_lost=1, room="shared"
        )

    async def commit(self, decision):
        return self._stores.attempts.commit(decision)


class Process:
    """A worker's process with a store in memory; messages are published nowhere."""

    def __init__(self):
        self.stores = MemoryStores(Tables(lambda: 1_800_000_000.0))
        self.engine, self.loop, self.threads = Engine(), Loop(), Threads("flujo-user")
        nowhere = SimpleNamespace(push=self._push, send=lambda *_: None)
        effects = LoopEffects(self.engine, self.stores, Groups(self.stores), self.threads, nowhere, at_once=4)
        self.plans_read = []
        plan = self.stores.code.plan
        self.stores.code.plan = lambda fingerprint: self.plans_read.append(fingerprint) or plan(fingerprint)
        catalog = code_registry.CodeRegistry(SETTINGS.allowed_imports, self.stores.code.plan)
        bench = user_code_runtime(SETTINGS, self.loop, self.threads, InMemoryCache())
        coordinator = Coordinator(
            self.stores,
            lambda *_: None,
            Evaluator(self.stores, catalog, bench),
            backoff=Backoff(),
            effects=effects,
        )
        self.stores.leases.register_worker(member("w"), 3600.0)
        lease = Lease(self.stores.leases, member("w"), lease_s=3600.0, renew_s=1200.0)
        hooks = HookCaller(catalog, bench, strict=False)
        self.attempts = Attempts(self.stores, coordinator, lease, self.loop, self.threads, hooks, SETTINGS, models=None)

    async def _push(self, envelopes, **_):
        return None

    def enqueue(self, reference, plan):
        """Record a run; return its first attempt."""
        order = Order(new_run_id(1_700_000_000.0))
        new = new_run(plan, reference, 1, order, size=SizeLimits(), allowed=("*",))
        self.stores.client.record(new)
        return new.first

    def begin(self, envelopes):
        """Deliver messages; return the future of what came of them."""

        async def deliver():
            return await asyncio.gather(*map(self.attempts.deliver, envelopes))

        return asyncio.run_coroutine_threadsafe(deliver(), self.engine.loop)

    def statuses(self, envelopes):
        return [self.stores.tables.attempts[each.key].status for each in envelopes]

    def close(self):
        self.engine.close()
        self.loop.close()
        self.threads.shutdown()


@pytest.fixture
def process():
    process = Process()
    yield process
    process.close()


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Write a module that has not been imported in this process; return its reference, its plan and the door of its import."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name):
        (tmp_path / f"{name}.py").write_text(MODULE.format(name=name))
        door = Door()
        monkeypatch.setitem(sys.modules, f"{name}_door", door)
        door.is_open.set()
        reference = f"{name}:pipeline"
        pipeline = load_pipeline(reference, allowed=SETTINGS.allowed_imports)
        plan = compile_plan(pipeline, default_name=default_name(reference))
        monkeypatch.delitem(sys.modules, name)
        door.times = 0
        door.is_open.clear()
        door.is_reached.clear()
        return reference, plan, door

    return write


@pytest.fixture
def compiled(monkeypatch):
    """The names of the pipelines that are compiled from now on."""
    compiled, compile_one = [], code_registry.compile_plan

    def counted(pipeline, *, default_name):
        compiled.append(default_name)
        return compile_one(pipeline, default_name=default_name)

    monkeypatch.setattr(code_registry, "compile_plan", counted)
    return compiled


def settled(process, door):
    """Wait until an import is under way and all else that the process could do is done."""
    assert door.is_reached.wait(60)

    async def idle():
        for _ in range(20):
            await asyncio.sleep(0)

    asyncio.run_coroutine_threadsafe(idle(), process.engine.loop).result(60)


def test_many_attempts_load_their_pipeline_once_and_wait_for_it_without_claims_and_threads(process, shop, compiled):
    reference, plan, door = shop("shop_one")
    first, *others = envelopes = [process.enqueue(reference, plan) for _ in range(MANY)]
    threads = threading.active_count()
    delivered = process.begin(envelopes)
    settled(process, door)
    assert process.statuses([first]) == ["running"]
    assert set(process.statuses(others)) == {"ready"}
    assert threading.active_count() <= threads + 1
    door.is_open.set()
    assert {each.disposition for each in delivered.result(60)} == {"merged"}
    assert (door.times, len(compiled), process.plans_read) == (1, 1, [])
    assert threading.active_count() <= threads + 4


def test_a_pipeline_that_does_not_load_is_imported_once_for_all_who_wait(process, shop):
    reference, plan, door = shop("shop_broken")
    door.error = RuntimeError("no licence")
    envelopes = [process.enqueue(reference, plan) for _ in range(20)]
    delivered = process.begin(envelopes)
    settled(process, door)
    door.is_open.set()
    assert {each.disposition for each in delivered.result(60)} == {"parked"}
    assert door.times == 1
    reasons = {row.reason for row in process.stores.tables.runs.values()}
    assert len(reasons) == 1
    assert "no licence" in reasons.pop()
    late = process.begin([process.enqueue(reference, plan)])
    assert late.result(60)[0].disposition == "parked"
    assert door.times == 2  # code that came later is found


def test_an_attempt_that_does_not_get_its_claim_leaves_the_import_to_the_next(process, shop):
    reference, plan, door = shop("shop_taken")
    taken, *others = envelopes = [process.enqueue(reference, plan) for _ in range(3)]
    process.stores.leases.register_worker(member("other"), 3600.0)
    process.stores.attempts.claim(taken.key, "other", max_lost=1)
    door.is_open.set()
    found = [each.disposition for each in process.begin(envelopes).result(60)]
    assert found == ["busy", "merged", "merged"]
    assert door.times == 1
    assert process.statuses(others) == ["succeeded"] * 2


def test_two_pipelines_do_not_wait_for_each_other(process, shop):
    slow, slow_plan, door = shop("shop_slow")
    quick, quick_plan, other = shop("shop_quick")
    other.is_open.set()
    waiting = process.begin([process.enqueue(slow, slow_plan) for _ in range(3)])
    settled(process, door)
    [done] = process.begin([process.enqueue(quick, quick_plan)]).result(60)
    assert done.disposition == "merged"
    assert not waiting.done()
    door.is_open.set()
    assert {each.disposition for each in waiting.result(60)} == {"merged"}


def test_whoever_asks_in_a_thread_meanwhile_has_the_same_pipeline(process, shop, compiled):
    """A sweep, a hook's call, a merge."""
    reference, plan, door = shop("shop_asked")
    asked = [process.threads.submit(process.attempts.catalog.entry, reference, plan.fingerprint) for _ in range(3)]
    assert door.is_reached.wait(60)
    delivered = process.begin([process.enqueue(reference, plan)])
    door.is_open.set()
    assert delivered.result(60)[0].disposition == "merged"
    assert len({id(each.result(60)) for each in asked}) == 1
    assert (door.times, len(compiled)) == (1, 1)


def test_merges_without_the_code_read_their_plan_once(process, shop):
    """Attempts that are claimed only to be closed load no code."""
    reference, plan, door = shop("shop_unread")
    envelopes = [process.enqueue(reference, plan) for _ in range(20)]
    coordinator = process.attempts._coordinator

    async def decide():
        read = (coordinator.effects.together(coordinator._read_plans, plan.fingerprint) for _ in envelopes)
        return await asyncio.gather(*read)

    assert asyncio.run_coroutine_threadsafe(decide(), process.engine.loop).result(60) == [plan] * 20
    assert (process.plans_read, door.times) == ([plan.fingerprint], 0)
