"""Calls of `enqueue` that are under way at the same time share a commit; each has its own run, or its own error (M-010)."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flujo_client import AsyncFlujoClient, Pipeline, Step
from flujo_client.errors import IdempotencyConflict, SerializationError
from flujo_client.gateway import post
from flujo_client.gateway.door import SyncRunner
from flujo_client.gateway.effects import Together
from tests.support.fleet import wait_until

pytestmark = pytest.mark.services

DIES_BEFORE_PUBLISH = """
import asyncio, os, signal
from flujo_client import AsyncFlujoClient
from flujo_client.gateway.post import ClientPublisher

async def enqueue():
    async with AsyncFlujoClient() as client:
        await client.enqueue("test_enqueue_together:fine", 0)
        ClientPublisher.publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.gather(*[client.enqueue("test_enqueue_together:fine", n, metadata={"killed": True}) for n in range(9)])

asyncio.run(enqueue())
"""


def ship(data):
    return data


fine = Pipeline([Step("ship", ship)])
other = Pipeline([Step("ship", ship), Step("again", ship)])


@pytest.fixture(autouse=True)
def _answering_broker(monkeypatch):
    """The broker counts as reached for the whole test, so that no call waits for another before it enters its group."""
    monkeypatch.setattr(post, "FRESH_S", 600.0)


async def enqueue_all(client, calls):
    return await asyncio.gather(
        *[client.enqueue(fine, n, **options) for n, options in enumerate(calls)], return_exceptions=True
    )


def with_async_client(site, act):
    async def perform():
        async with AsyncFlujoClient(site.settings) as client:
            await client.enqueue(fine, "first")  # so that the broker has answered just now
            return await act(client)

    return asyncio.run(asyncio.wait_for(perform(), 60))


def commits(site, runs):
    found = site.rows("SELECT count(DISTINCT xmin::text) AS n FROM flujo_runs WHERE id = ANY(%(runs)s)", runs=runs)
    return found[0]["n"]


def test_tasks_that_enqueue_at_the_same_time_share_commits(site):
    runs = with_async_client(site, lambda client: enqueue_all(client, [{}] * 100))
    assert commits(site, [run.id for run in runs]) == 2  # 64 and 36
    with_inputs = [site.client.get_run(run.id).record().input.tree() for run in runs]
    assert with_inputs == list(range(100))
    assert all(run.is_new for run in runs)


def test_threads_that_enqueue_at_the_same_time_share_commits(site):
    together = threading.Barrier(16)

    def enqueue(n):
        together.wait()
        return [site.client.enqueue(fine, [n, at]) for at in range(10)]

    with ThreadPoolExecutor(16) as pool:
        runs = [run for some in pool.map(enqueue, range(16)) for run in some]
    assert len({run.id for run in runs}) == 160
    assert commits(site, [run.id for run in runs]) < 160
    assert [run.record().input.tree() for run in runs] == [[n, at] for n in range(16) for at in range(10)]


def test_runs_are_published_in_the_order_of_their_calls(site):
    site.redis.delete("flujo.attempts")
    runs = with_async_client(site, lambda client: enqueue_all(client, [{}] * 100))
    pushed = [str(message) for message in site.redis.lrange("flujo.attempts", 0, -1)][::-1]
    assert [next(run.id for run in runs if run.id in message) for message in pushed[1:]] == [run.id for run in runs]


def test_what_is_refused_harms_only_its_caller(site):
    taken = site.client.enqueue(fine, "taken").id
    calls = [{}, {"run_id": taken}, {"metadata": {"a": object()}}, {"priority": 5, "tenant": "acme"}, {}]
    first, again, invalid, urgent, last = with_async_client(site, lambda client: enqueue_all(client, calls))
    assert isinstance(again, IdempotencyConflict)
    assert isinstance(invalid, SerializationError)
    records = [site.client.get_run(run.id).record() for run in (first, urgent, last)]
    assert [(each.input.tree(), each.tenant) for each in records] == [(0, ""), (3, "acme"), (4, "")]


def test_what_has_a_key_is_enqueued_once_among_others(site):
    calls = [{"idempotency_key": "one"}, {}, {"idempotency_key": "one"}]
    first, plain, second = with_async_client(site, lambda client: enqueue_all(client, calls))
    assert plain.is_new
    assert [isinstance(each, IdempotencyConflict) for each in (first, second)].count(True) == 1


def test_a_caller_that_is_cancelled_takes_no_other_with_it(site):
    async def cancel_the_first(client):
        tasks = [asyncio.create_task(client.enqueue(fine, n)) for n in range(5)]
        await asyncio.sleep(0)  # the first leads the group by now
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    cancelled, *runs = with_async_client(site, cancel_the_first)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert [site.client.get_run(run.id).record().input.tree() for run in runs] == [1, 2, 3, 4]


def test_runs_of_a_client_that_is_killed_before_it_publishes_are_left_to_the_sweeper(site):
    here = Path(__file__).parent
    environment = {**os.environ, **site.settings.as_environment(), "PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    died = subprocess.run([sys.executable, "-c", DIES_BEFORE_PUBLISH], env=environment, check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    runs = [run.id for run in site.client.list_runs(metadata={"killed": True})]
    assert len(runs) == 9
    due = "SELECT count(*) AS n FROM flujo_attempts WHERE run_id = ANY(%(runs)s) AND status = 'ready' AND sends = 0 AND available_at <= now()"
    wait_until(lambda: site.rows(due, runs=runs) == [{"n": 9}])


def test_a_thread_that_is_interrupted_while_it_leads_leaves_the_others_to_themselves(site):
    """As by the handler of a signal: the waiting calls go on alone, and the next group has another leader."""
    leads, waits = threading.Event(), threading.Event()
    runner = SyncRunner(site.settings)

    class Kind:
        def __hash__(self):
            if leads.is_set():
                waits.set()
            return 1

    kind = Kind()

    def act(items):
        leads.set()
        waits.wait(10)
        raise KeyboardInterrupt
        yield

    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(runner.perform, ask(kind, 1, act))
        assert leads.wait(60)
        other_call = pool.submit(runner.perform, ask(kind, 2, answer))
        with pytest.raises(KeyboardInterrupt):
            leader.result(10)
        assert other_call.result(10) == "2 alone"
    assert runner.perform(ask(kind, 3, answer)) == "3 alone"


def test_a_handler_of_a_signal_does_not_wait_for_the_call_that_it_interrupts(site):
    runner = SyncRunner(site.settings)

    def interrupted(items):
        return [runner.perform(ask("kind", 2, answer))]
        yield

    assert runner.perform(ask("kind", 1, interrupted)) is None
    assert runner.perform(ask("kind", 3, answer)) == "3 alone"


def ask(kind, item, act):
    return (yield Together(kind, item, act))


def answer(items):
    return [f"{item} alone" for item in items]
    yield
