"""The thread that calls hooks after commits: at once when it is notified, each call once at a time, the last ones at a stop."""

from __future__ import annotations

import threading

import pytest
from container_parts import step

from flujo_client import Pipeline, PostRunPayload
from flujo_worker.concurrency.threads import Threads
from flujo_worker.errors import StoreError
from flujo_worker.recovery.hook_delivery import HookThread
from tests.support.fleet import PATIENCE_S, wait_until

NEVER = 3600.0


class Gate:
    """A hook that waits until it is opened, and remembers who came."""

    def __init__(self):
        self.runs, self.open = [], threading.Event()

    def __call__(self, payload: PostRunPayload):
        self.runs.append(payload.run_id)
        self.open.wait(PATIENCE_S)


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def wake():
    return threading.Event()


@pytest.fixture
def thread(engine, wake):
    threads = Threads("test-hooks")
    thread = HookThread(engine.hook_calls, threads, wake, every_s=NEVER, at_once=2)
    yield thread
    threads.shutdown()


def ended(engine, gate, runs=1):
    """Runs that have ended, and whose hooks no one has told yet."""
    engine._deliver_hooks = lambda: False
    pipeline = Pipeline([step("a")], hooks=[gate])
    return [engine.run(pipeline, 1).run_id for _ in range(runs)]


def owed(engine):
    return engine.stores.hook_calls.pending("local", 10)


def test_a_ring_has_hooks_told_at_once(engine, gate, wake, thread):
    [run] = ended(engine, gate)
    gate.open.set()
    thread.start()
    wake.set()
    wait_until(lambda: not owed(engine), what="the hooks")
    thread.stop()
    assert gate.runs == [run]


@pytest.mark.parametrize("is_hooked", [True, False])
def test_only_the_end_of_a_run_with_hooks_wakes_the_thread(engine, gate, wake, is_hooked):
    """Each wake-up is a query."""
    gate.open.set()
    engine.coordinator._on_hooks_due = wake.set
    engine.run(Pipeline([step("a")], hooks=[gate] if is_hooked else []), 1)
    assert wake.is_set() is is_hooked


def test_what_is_under_way_is_not_begun_again(engine, gate, wake, thread):
    """Its own row is this worker's to take."""
    ended(engine, gate)
    thread.start()
    for _ in range(3):
        wake.set()
        wait_until(lambda: not wake.is_set(), what="a look")
    wait_until(lambda: gate.runs, what="the hook")
    gate.open.set()
    wait_until(lambda: not owed(engine), what="its end")
    thread.stop()
    assert len(gate.runs) == 1


def test_so_many_are_told_at_once(engine, gate, wake, thread):
    """Others wait for their turn, and come."""
    runs = ended(engine, gate, 5)
    thread.start()
    wake.set()
    wait_until(lambda: len(gate.runs) == 2, what="two")
    assert len(gate.runs) == 2
    gate.open.set()
    wait_until(lambda: not owed(engine), what="the rest")
    thread.stop()
    assert sorted(gate.runs) == sorted(runs)


def test_a_stop_has_the_last_ones_told(engine, gate, thread):
    """A run that ended a moment before its worker does is not left to the next worker, if there will be any."""
    [run] = ended(engine, gate)
    gate.open.set()
    thread.start()
    thread.stop()
    assert (gate.runs, owed(engine)) == ([run], [])


def test_an_error_does_not_end_the_thread(engine, gate, wake, thread, monkeypatch):
    [run] = ended(engine, gate)
    gate.open.set()
    errors, take = [StoreError("away"), ValueError("a bug")], engine.stores.hook_calls.take

    def stumble(*given, **rest):
        if errors:
            raise errors.pop()
        return take(*given, **rest)

    monkeypatch.setattr(engine.stores.hook_calls, "take", stumble)
    thread.start()

    def nothing_owed():
        wake.set()
        return not owed(engine)

    wait_until(nothing_owed, what="the hooks")
    thread.stop()
    assert gate.runs == [run]
