"""The gate before a consumer of RabbitMQ."""

from functools import partial
from types import SimpleNamespace

from celery import Celery

from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import TASKS
from flujo_worker.celery_app.consumer.gate import ItemGate
from flujo_worker.celery_app.consumer.refusals import Refusals


class FakeConsumer:
    """A consumer of Celery's whose loop has not begun."""

    pool, task_consumer, connection_errors, channel_errors = None, None, (), ()
    timer = SimpleNamespace(call_repeatedly=lambda *_: None)
    steps = ()

    def __init__(self):
        self.soon, self.handled = [], []

    def call_soon(self, function, *args):
        self.soon.append(partial(function, *args))

    def create_task_handler(self):
        return self.handled.append


def test_what_rabbitmq_delivers_before_the_worker_is_ready_is_handled_after_it():
    """Without a host from the signal of a ready worker, a task would make one that has threads instead of the pool."""
    app, task = Celery("app", broker="amqp://127.0.0.1:1"), TASKS["step"]
    app.tasks[task] = object()
    settings = Settings(broker_url="amqp://127.0.0.1:1", database_url="postgresql://127.0.0.1:1/x")
    gate, consumer = ItemGate(app, settings, Refusals(lambda: settings), {task}, is_alone=True), FakeConsumer()
    gate.guard(consumer)

    class Message(SimpleNamespace):
        __hash__ = object.__hash__

    message = Message(headers={"task": task}, delivery_info={"routing_key": "flujo.attempts"}, acknowledged=False)
    consumer.create_task_handler()(message)
    assert consumer.handled == []
    for function in consumer.soon:
        function()
    assert consumer.handled == [message]
