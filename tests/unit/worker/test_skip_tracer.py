"""When a message may take the short way to the engine: only where no one would miss Celery's tracer."""

from types import SimpleNamespace

import pytest
from celery import Celery, Task, signals
from celery.app import trace
from celery.events.state import State

from flujo_worker.attempts.isolation import DeliveryResult, FailureText
from flujo_worker.celery_app.consumer.events import EventsOnRequest, PoolEvents
from flujo_worker.celery_app.consumer.pool import AttemptPool, EngineRequest

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
    pool.serve(SimpleNamespace(effects=None, execute=None), engine=None)
    yield pool
    pool.executor.shutdown()


@pytest.fixture
def task():
    return own_task(Celery(set_as_current=False))


def test_where_no_one_listens_the_tracer_is_left_out(pool, task):
    assert pool.can_skip_tracer(task)


@pytest.mark.parametrize("name", ["task_received", "task_prerun", "task_postrun", "task_success", "task_failure"])
def test_a_receiver_of_a_signal_is_called(pool, task, name):
    """OpenTelemetry's instrumentation connects these."""

    def receiver(**_):
        return None

    signal = getattr(signals, name)
    signal.connect(receiver)
    try:
        assert not pool.can_skip_tracer(task)
    finally:
        signal.disconnect(receiver)
    assert pool.can_skip_tracer(task)


def test_task_events_are_sent_without_the_tracer_once_somebody_enables_them():
    """Before, `flujo worker` sends nothing at all."""
    sent = []
    with Celery(broker="memory://", set_as_current=False) as app:
        dispatcher = EventsOnRequest(app.connection_for_write(), app=app, groups=["worker"])
        dispatcher.producer = SimpleNamespace(publish=lambda event, **_: sent.append(event))
        consumer = SimpleNamespace(event_dispatcher=dispatcher, call_soon=lambda call, *given: call(*given))
        request, events = (
            EngineRequest({**HEADERS, "shadow": "shop:orders/price"}, {}, None, "q", consumer),
            PoolEvents(),
        )
        for _ in range(2):
            dispatcher.send("worker-heartbeat")
            events.begun(request)
            for failure in (None, FailureText("the bank is closed", "line 3")):
                events.ended(request, DeliveryResult("merged", failure=failure))
            events.ended(request, DeliveryResult("ended"))
            dispatcher.groups.add("task")
    heartbeat, received, started, succeeded, failed, again = sent
    shown = State()
    for clock, each in enumerate((received, started, failed, received, started, again)):
        shown.event({**each, "clock": clock, "local_received": each["timestamp"]})
    assert shown.tasks[request.id].state == "FAILURE", "a doubled delivery hides the end"
    assert again["type"] == "task-rejected"
    assert (received["type"], received["uuid"], received["name"]) == ("task-received", request.id, "shop:orders/price")
    assert [each["type"] for each in (heartbeat, started)] == ["worker-heartbeat", "task-started"]
    assert (succeeded["type"], succeeded["runtime"] > 0) == ("task-succeeded", True)
    assert (failed["type"], failed["exception"]) == ("task-failed", "StepFailed('the bank is closed')")


def test_a_tracer_that_someone_has_replaced_is_used(pool, task, monkeypatch):
    """Sentry's integration does that."""
    monkeypatch.setattr(trace, "build_tracer", lambda *args, **kwargs: None)
    assert not pool.can_skip_tracer(task)


def test_an_application_s_own_class_of_tasks_is_called(pool):
    class Own(Task):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs)

    app = Celery(task_cls=Own, set_as_current=False)
    assert not pool.can_skip_tracer(own_task(app))


def test_until_someone_serves_the_tracer_is_used(task):
    pool = AttemptPool(limit=2)
    assert not pool.can_skip_tracer(task)
    pool.executor.shutdown()


def test_a_message_shows_no_more_than_its_header(pool):
    request = EngineRequest(
        HEADERS, {"context": "secret"}, None, "flujo.attempts", SimpleNamespace(hostname="worker@here")
    )
    assert "secret" not in str(request.info())
    assert request.part is None
