"""Behaviour of Celery and kombu that we rely on, so that an upgrade which changes it fails loudly."""

import base64
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import orjson
import pytest
import redis
from celery import Celery, chord
from celery.concurrency.thread import TaskPool
from kombu import Queue
from kombu.asynchronous import Hub

from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import TASK_ATTEMPT, JoinSignal
from flujo_client.transport.broker import Broker
from flujo_client.transport.chords import membership
from flujo_client.transport.wire import SERIALIZER, register
from flujo_worker.celery_app.app import FlujoWorker
from flujo_worker.celery_app.consumer.private_names import keep_events, let_calls_wake
from flujo_worker.celery_app.own_app import own_app
from flujo_worker.engine.dispatch import RedisPublisher
from flujo_worker.errors import DispatchError
from tests.support.builders import enqueued

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
    # Celery leaves its reprs in the properties as well; no one reads them there.
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
    app = Celery(broker=settings.broker(), set_as_current=False)
    app.send_task(
        TASK_ATTEMPT,
        args=(first.to_wire(),),
        task_id=first.key,
        queue=first.queue,
        serializer=SERIALIZER,
        argsrepr=f"({first.key})",
        kwargsrepr="{}",
        ignore_result=True,
        shadow=f"{first.ticket.reference}/{first.step}",
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
    app = Celery(broker=settings.broker(), set_as_current=False)
    app.conf.broker_transport_options = {"global_keyprefix": "shop:"}
    with app.connection_for_read() as connection:
        assert connection.default_channel.client.llen("flujo.attempts") == 1
    app.close()
    assert lists.llen("shop:flujo.attempts") == 1


def test_a_message_that_is_published_first_is_taken_first(settings, lists):
    register()
    one, two, three = (enqueued().first for _ in range(3))
    broker = Broker(settings)
    broker.publish([one, two])
    broker.publish([three], first=True)
    taken = [orjson.loads(lists.rpop("flujo.attempts"))["headers"]["id"] for _ in range(3)]
    assert taken == [three.key, one.key, two.key]


def test_without_acknowledgements_kombu_keeps_nothing_in_redis_and_still_prefetches_in_bounds(settings, lists):
    """`broker_acks = false` turns off bookkeeping in Redis, not the window of messages a worker takes."""
    register()
    Broker(settings).publish([enqueued().first for _ in range(5)])
    app = Celery(broker=settings.broker(), set_as_current=False)
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


CONTROL = "flujo.control"
OUTER, INNER = "outer", "outer/left/inner"


@pytest.fixture
def app(settings):
    register()
    app = own_app(settings)
    yield app
    app.close()
    register()


@pytest.mark.parametrize("lanes", [{OUTER: 2}, {OUTER: 2, INNER: 0}, {OUTER: 2, INNER: 0, f"{INNER}/x/deep": 1}])
def test_our_member_is_the_one_that_celerys_chord_would_write(settings, lists, app, lanes):
    """M-007, ADR 9: derived membership is what `chord(header, body, task_id=…)` gives, at any depth."""
    first = replace(enqueued().first, address=f"{max(lanes, key=len)}/branch", lanes=lanes)
    Broker(settings).publish([first])
    mine = lists.lpop("flujo.attempts")
    part = membership(first.ticket.run, lanes, queue=CONTROL)
    last = app.signature(TASK_ATTEMPT, args=(first.to_wire(),)).set(
        task_id=first.key,
        queue=first.queue,
        serializer=SERIALIZER,
        argsrepr=f"({first.key})",
        kwargsrepr="{}",
        ignore_result=True,
        shadow=f"{first.ticket.reference}/{first.step}",
        headers={"flujo_run": first.ticket.run, "flujo_step": first.step},
    )
    header = [last.clone(task_id=f"filler-{n}") for n in range(part["group_index"])] + [last]
    # Forgotten at once: collected later, a result says so to a Redis that may be gone.
    chord(header, app.signature(dict(part["chord"])), task_id=part["group_id"]).apply_async().forget()
    other = stable(lists.lpop("flujo.attempts"))
    body = other["body"][2]["chord"]["options"]
    body.pop("reply_to")  # no caller waits for an answer here
    if body.get("group_id") == part["group_id"]:  # a body that is in no group says whose body it is; no one reads it
        body.pop("group_id")
    assert stable(mine) == other


def test_our_doorbell_is_the_one_that_celery_would_write(settings, lists, app):
    """A join that the sweeper publishes has the id, arguments and membership of the body it stands in for."""
    around = {OUTER: 2}
    join_signal = JoinSignal("run", INNER)
    first = enqueued(run_id="run").first
    join = replace(first, address=INNER, step=join_signal.step, kind="join", queue=CONTROL, lanes=around)
    Broker(settings).publish([join])
    mine = lists.lpop(CONTROL)
    body = app.signature(membership("run", {**around, INNER: 0}, queue=CONTROL)["chord"])
    body.set(
        argsrepr=f"({join_signal.key})", kwargsrepr="{}", headers={"flujo_run": "run", "flujo_step": join_signal.step}
    )
    body.delay([])
    assert stable(mine) == stable(lists.lpop(CONTROL))


def test_a_chord_of_one_is_a_chord(app, lists):
    """Celery makes no chain of it: a fan-out with one branch is joined like any other."""
    part = membership("run", {OUTER: 0}, queue=CONTROL)
    header = [app.signature(TASK_ATTEMPT).set(queue="flujo.attempts", ignore_result=True)]
    chord(header, app.signature(dict(part["chord"])), task_id=part["group_id"]).apply_async().forget()
    message = stable(lists.lpop("flujo.attempts"))
    assert (message["headers"]["group"], message["headers"]["group_index"]) == (part["group_id"], 0)
    assert message["body"][2]["chord"]["options"]["task_id"] == part["chord"]["options"]["task_id"]


def test_an_unreachable_backend_gives_up_within_seconds():
    """What a fan-out's commit is followed by may not hold its worker: Celery's own default is 20 tries."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{taken.getsockname()[1]}"
        settings = Settings(database_url="postgresql://nowhere/none", broker_url=url)
        app = FlujoWorker(settings=settings).app
        before = time.monotonic()
        with pytest.raises(DispatchError, match="run:outer"):
            RedisPublisher(settings, app).open_chord("run", OUTER, 1)
    assert time.monotonic() - before < 20


def test_a_call_from_a_thread_wakes_a_hub_at_once():
    """Acknowledgements of a threads pool are such calls; before kombu 5.7 they waited for the hub's next event: a second and more."""
    hub, called, ended = Hub(), threading.Event(), threading.Event()
    quiet, _other_end = socket.socketpair()

    def run():
        while not ended.is_set():
            hub.run_once()

    for _ in range(2):
        hub.reset()  # as at the end of a connection
        hub.add_reader(quiet, bool)
        let_calls_wake(hub)
        running = threading.Thread(target=run, daemon=True)
        running.start()
        waits = []
        for _ in range(5):
            called.clear()
            begun = time.monotonic()
            hub.call_soon(called.set)
            called.wait()
            waits.append(time.monotonic() - begun)
        assert sorted(waits)[2] < 0.5
        hub.call_soon(ended.set)
        running.join()
        ended.clear()
    hub.close()


def test_an_event_that_comes_while_others_are_published_is_not_lost(monkeypatch):
    """Flower sees that each attempt ends. Before Celery 5.7, a buffer was emptied of what came while it was published."""
    app, published, senders = Celery(broker="memory://", set_as_current=False), [], []
    with app.connection_for_write() as connection:
        events = app.events.Dispatcher(connection, buffer_group=["task"])
        keep_events(SimpleNamespace(event_dispatcher=events, pool=TaskPool(1, app=app)))

        def publish(batch, **_):
            batch = list(batch) if isinstance(batch, list) else [batch]
            if not senders:
                senders.append(threading.Thread(target=events.send, args=("task-succeeded",)))
                senders[0].start()
                senders[0].join(0.2)
            published.extend(batch)

        monkeypatch.setattr(events.producer, "publish", publish)
        events.send("task-received")
        events.flush()
        senders[0].join()
        events.flush()
    assert [each["type"] for each in published] == ["task-received", "task-succeeded"]
