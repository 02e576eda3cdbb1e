"""The worker pool of our own, as those see it who run Celery: remote control, events, signals, slots."""

from __future__ import annotations

import threading

import pytest
from fleet import assert_merged_once, wait_until

from flujo_client.contract.envelope import TASK_ATTEMPT
from flujo_worker.app import FlujoWorker
from flujo_worker.consumer.pool import POOL

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def app(site):
    """An app beside the workers', as `celery -A ... inspect` has one."""
    app = FlujoWorker(settings=site.settings).app
    yield app
    app.close()


@pytest.fixture(autouse=True)
def nobody_left(site):
    yield
    site.dismiss()


@pytest.fixture
def gated(site):
    """A worker with one attempt at work and one that waits for a slot."""
    site.workers(arguments=("--pool", "attempts", "--concurrency", "1"))
    first, second = site.enqueue("gated"), site.enqueue("gated")
    begun = wait_until(
        lambda: next((each for run in (first, second) for each in site.executions(run.id, "gate")), None), what=site.log
    )
    yield begun, first, second
    for run in (first, second):
        site.open_gate(run.id)
        assert_merged_once(site, run, ["before", "gate", "after"])


def answered(ask):
    """The one worker's answer to an inspection."""
    [answer] = wait_until(lambda: (ask() or {}).values(), what="nobody answers")
    return answer


def test_inspect_lists_attempts(app, site, gated):
    """Celery's `inspect active`, `query_task` and `stats` know what the engine has, and show nothing of a context."""
    begun, *_ = gated
    [held] = wait_until(lambda: answered(app.control.inspect().active), what=site.log)
    assert held["name"] == TASK_ATTEMPT
    assert held["id"].startswith(f"{begun.run}:")
    assert held["args"] == f"({held['id']})"
    assert answered(lambda: app.control.inspect().query_task(held["id"]))[held["id"]][0] == "active"
    stats = answered(app.control.inspect().stats)
    assert stats["pool"]["implementation"] == POOL
    assert stats["pool"]["attempts"] == 1
    assert stats["total"][TASK_ATTEMPT] >= 2


def test_a_worker_runs_no_more_attempts_than_its_concurrency(site, gated):
    """M-010: the second run's gate is not reached while the first holds the only slot."""
    begun, first, second = gated
    other = second if begun.run == first.id else first
    assert not site.executions(other.id, "gate")


def test_somebody_who_listens_to_events_hears_of_attempts(app, site):
    """Flower and `celery events`: once events are on, messages take the tracer's way; before and after they do not."""
    site.workers(arguments=("--pool", "attempts"))
    heard, is_over = [], threading.Event()

    def listen():
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": heard.append})
            while not is_over.is_set():
                try:
                    receiver.capture(limit=1, timeout=0.2, wakeup=False)
                except TimeoutError:
                    continue

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        assert wait_until(lambda: app.control.broadcast("enable_events", reply=True), what=site.log)
        run = site.enqueue("gated")
        site.open_gate(run.id)
        assert_merged_once(site, run, ["before", "gate", "after"])
        kinds = {"task-received", "task-started", "task-succeeded"}
        wait_until(lambda: kinds <= {each["type"] for each in heard}, what=lambda: str(heard))
    finally:
        is_over.set()
        listener.join()
