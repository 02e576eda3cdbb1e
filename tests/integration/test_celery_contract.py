"""What we lean on in Celery and kombu, so that a bump which changes it fails loudly."""

from __future__ import annotations

import base64

import orjson
import pytest
import redis
from builders import enqueued
from celery import Celery
from kombu import Queue

from flujo_client.broker import Broker
from flujo_client.config import Settings
from flujo_client.contract.envelope import TASK_ATTEMPT
from flujo_client.wire import SERIALIZER, register

pytestmark = pytest.mark.services

VOLATILE = {"headers": {"origin", "flujo_sent_at"}, "properties": {"reply_to", "delivery_tag"}}


@pytest.fixture
def settings(redis_url) -> Settings:
    return Settings(database_url="postgresql://nowhere/none", broker_url=redis_url)


@pytest.fixture
def lists(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        yield client


def stable(raw: bytes) -> dict:
    """A stored message without what differs from one to the next."""
    message = orjson.loads(raw)
    body = orjson.loads(base64.b64decode(message["body"]))
    kept = {
        part: {key: value for key, value in message[part].items() if key not in names}
        for part, names in VOLATILE.items()
    }
    # Celery leaves its reprs in the properties as well; nobody reads them there.
    for name in ("argsrepr", "kwargsrepr"):
        kept["properties"].pop(name, None)
    return message | kept | {"body": body}


@pytest.mark.parametrize("priority", [None, 0, 2, 3, 5, 9])
def test_our_message_is_the_one_that_celery_would_write(settings, lists, priority):
    """DC packages, design §4: stock workers, inspect and Flower see a plain task message, in the list that kombu reads."""
    first = enqueued(priority=priority).first
    Broker(settings).publish([first])
    ours = {key: lists.lpop(key) for key in lists.keys("flujo.attempts*")}
    register()
    app = Celery(broker=settings.broker_url, set_as_current=False)
    app.send_task(
        TASK_ATTEMPT,
        args=(first.to_wire(),),
        task_id=first.key,
        queue=first.queue,
        serializer=SERIALIZER,
        argsrepr=f"({first.key})",
        kwargsrepr="{}",
        ignore_result=True,
        headers={"flujo_run": first.ticket.run, "flujo_step": first.step},
        **({} if priority is None else {"priority": priority}),
    )
    theirs = {key: lists.lpop(key) for key in lists.keys("flujo.attempts*")}
    app.close()
    assert ours.keys() == theirs.keys()
    [mine], [other] = ours.values(), theirs.values()
    assert stable(mine) == stable(other)


def test_a_key_prefix_is_kombus(settings, lists):
    """An app with `global_keyprefix` reads what is published with `broker_key_prefix`."""
    Broker(settings.model_copy(update={"broker_key_prefix": "shop:"})).publish([enqueued().first])
    app = Celery(broker=settings.broker_url, set_as_current=False)
    app.conf.broker_transport_options = {"global_keyprefix": "shop:"}
    with app.connection_for_read() as connection:
        assert connection.default_channel.client.llen("flujo.attempts") == 1
    app.close()
    assert lists.llen("shop:flujo.attempts") == 1


def test_without_acknowledgements_kombu_keeps_nothing_in_redis_and_still_prefetches_in_bounds(settings, lists):
    """`broker_acks = false` turns off bookkeeping in Redis, not the window of messages a worker takes."""
    register()
    Broker(settings).publish([enqueued().first for _ in range(5)])
    app = Celery(broker=settings.broker_url, set_as_current=False)
    app.conf.broker_transport_options = {"ack_emulation": False}
    taken = []
    with (
        app.connection_for_read() as connection,
        connection.Consumer(
            [Queue("flujo.attempts", routing_key="flujo.attempts")],
            accept=[SERIALIZER],
            prefetch_count=2,
            callbacks=[lambda _, message: taken.append(message)],
        ),
    ):
        for _ in range(4):
            try:
                connection.drain_events(timeout=0.3)
            except TimeoutError:
                break
        assert len(taken) == 2
        assert lists.llen("flujo.attempts") == 3
        assert not lists.exists("unacked")
    app.close()
