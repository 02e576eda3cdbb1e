"""When a message may take the short way to the engine: only where no one would miss Celery's tracer."""

from types import SimpleNamespace

import pytest
from celery import Celery, Task, signals
from celery.app import trace

from flujo_worker.celery_app.consumer.pool import AttemptPool, Held

HEADERS = {
    "id": "run:a:s:1:step",
    "task": "flujo.attempt",
    "argsrepr": "(…)",
    "kwargsrepr": "{}",
    "group": None,
    "shadow": None,
}


def act():
    """What a task does."""


def own_task(app):
    app.task(act, name="t")
    return app.tasks["t"]


@pytest.fixture
def pool():
    pool = AttemptPool(limit=2)
    pool.serve(SimpleNamespace(effects=None), engine=None)
    yield pool
    pool.executor.shutdown()


@pytest.fixture
def task():
    return own_task(Celery(set_as_current=False))


def consumer(*, events=False):
    """A worker as any is that heartbeats, whose events of tasks somebody has enabled or not."""
    groups = {"worker", "task"} if events else {"worker"}
    return SimpleNamespace(event_dispatcher=SimpleNamespace(enabled=True, groups=groups))


def test_where_no_one_listens_the_tracer_is_left_out(pool, task):
    assert pool.can_skip_tracer(task, consumer())


@pytest.mark.parametrize("name", ["task_received", "task_prerun", "task_postrun", "task_success", "task_failure"])
def test_a_receiver_of_a_signal_is_called(pool, task, name):
    """OpenTelemetry's instrumentation connects these."""

    def receiver(**_):
        return None

    signal = getattr(signals, name)
    signal.connect(receiver)
    try:
        assert not pool.can_skip_tracer(task, consumer())
    finally:
        signal.disconnect(receiver)
    assert pool.can_skip_tracer(task, consumer())


def test_task_events_are_sent(pool, task):
    assert not pool.can_skip_tracer(task, consumer(events=True))
    every_group = SimpleNamespace(event_dispatcher=SimpleNamespace(enabled=True, groups=set()))
    assert not pool.can_skip_tracer(task, every_group)


def test_a_tracer_that_someone_has_replaced_is_used(pool, task, monkeypatch):
    """Sentry's integration does that."""
    monkeypatch.setattr(trace, "build_tracer", lambda *args, **kwargs: None)
    assert not pool.can_skip_tracer(task, consumer())


def test_an_application_s_own_class_of_tasks_is_called(pool):
    class Own(Task):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs)

    app = Celery(task_cls=Own, set_as_current=False)
    assert not pool.can_skip_tracer(own_task(app), consumer())


def test_until_someone_serves_the_tracer_is_used(task):
    pool = AttemptPool(limit=2)
    assert not pool.can_skip_tracer(task, consumer())
    pool.executor.shutdown()


def test_a_message_shows_no_more_than_its_header(pool):
    held = Held(HEADERS, {"context": "secret"}, None, "flujo.attempts", "worker@here")
    assert "secret" not in str(held.info())
    assert held.part is None
