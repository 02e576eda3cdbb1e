"""Taking messages by free slots from a real Redis: with BLMPOP where the server knows it, and with BRPOP and RPOP where it does not."""

import logging
import subprocess
import threading
import time
from urllib.parse import urlsplit

import pytest
import redis
from celery import Celery, signals
from celery.contrib.testing.worker import start_worker
from celery.worker import state
from kombu import Connection, Queue
from kombu.asynchronous import Hub
from kombu.transport.redis import SentinelTransport, Transport

from flujo_client.config.manager import Settings
from flujo_client.embedded.redis import Redis
from flujo_client.embedded.state import Ownership
from flujo_worker.celery_app.consumer.channel import MOST_AT_ONCE, BulkChannel, Capacity, connection_for
from flujo_worker.celery_app.consumer.gate import ItemGate, guarding
from tests.support.fleet import PATIENCE_S, wait_until
from tests.support.junk import JUNK, push

pytestmark = pytest.mark.services

PREFIX = "shop:"
POLL_S = 1.0
"""How long kombu's hub waits when nothing wakes it."""


@pytest.fixture(scope="module")
def services(services_to_break):
    """Return services that no other test process uses: tests here count the server's clients and commands, and close all connections."""
    return services_to_break


@pytest.fixture(scope="module")
def old_server(tmp_path_factory):
    """A server that does not know BLMPOP, behind a Unix socket; the URL names it as kombu does."""
    folder = tmp_path_factory.mktemp("old")
    server = Redis(folder)
    if server.kind == "fakeredis":
        pytest.skip("no real Redis is installed")
    path = folder / "s"
    settings = f'port 0\nunixsocket {path}\nsave ""\nrename-command BLMPOP ""\nrename-command LMPOP ""\n'
    process = subprocess.Popen([server._executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    process.stdin.write(settings.encode())
    process.stdin.close()
    wait_until(path.exists)
    yield f"redis+socket://{path}"
    process.terminate()
    process.wait()


@pytest.fixture(params=["BLMPOP", "BRPOP"])
def url(request):
    """The URL of an empty Redis that is asked with this command."""
    if request.param == "BRPOP":
        url = request.getfixturevalue("old_server")
    else:
        url = request.getfixturevalue("redis_url")
        if not knows_blmpop(url):
            pytest.skip("the installed Redis is older than 7")
    client_of(url).flushdb()
    return url


def client_of(url):
    return redis.Redis.from_url(url.replace("redis+socket", "unix"))


def knows_blmpop(url):
    return int(client_of(url).info("server")["redis_version"].split(".")[0]) >= 7


class Slots:
    def __init__(self, free):
        self.free = free


class Taker:
    """A hub in a separate thread that takes messages; each one occupies a slot. What `deliver` raises ends the hub."""

    def __init__(self, url, free, *queues, deliver=lambda body: None, **options):
        self.slots = Slots(free)
        self.capacity = Capacity(self.slots)
        options = {"global_keyprefix": PREFIX, "ack_emulation": False, "polling_interval": 0.1, **options}
        self.connection = connection_for(self.capacity)(url, transport_options=options)
        self.bodies, self.times, self.error = [], [], None
        self._queues, self._deliver = queues or ("q",), deliver
        self._is_up, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        wait_until(self._is_up.is_set)
        return self

    def __exit__(self, *_):
        self._ending.set()
        self.hub.call_soon(bool)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def free(self, count):
        self.slots.free += count
        self.capacity.wake()

    def wait_for(self, count):
        wait_until(lambda: len(self.bodies) >= count or self.error, what=lambda: str(self.bodies))
        assert self.error is None
        return self.bodies

    def _run(self):
        self.hub = Hub()
        self.connection.connect()
        self.connection.register_with_event_loop(self.hub)
        self.consumer = self.connection.Consumer(
            [Queue(name) for name in self._queues], on_message=self._on_message, accept=["json"]
        )
        self.consumer.consume()
        self._is_up.set()
        try:
            while not self._ending.is_set():
                self.hub.run_once()
        except Exception as error:  # noqa: BLE001
            self.error = error
        self.connection.close()
        self.hub.close()

    def _on_message(self, message):
        self._deliver(message.payload)
        self.slots.free -= 1
        assert self.slots.free >= 0
        self.bodies.append(message.payload)
        self.times.append(time.monotonic())
        message.ack()


def publish(url, bodies, queue="q", **options):
    with (
        Connection(url, transport_options={"global_keyprefix": PREFIX}) as connection,
        connection.Producer() as producer,
    ):
        for body in bodies:
            producer.publish(body, routing_key=queue, serializer="json", **options)


def left(url, queue="q"):
    """What is in a queue, the oldest first."""
    with Connection(url, transport_options={"global_keyprefix": PREFIX}) as connection, connection.channel() as channel:
        bodies = []
        while message := channel.basic_get(queue, no_ack=True):
            message.accept = ["application/json"]
            bodies.append(message.payload)
        return bodies


def is_asking(url):
    """Tell whether a client waits for messages."""
    return client_of(url).info("clients")["blocked_clients"] > 0


def test_no_more_than_free_slots_is_taken(url):
    """Three slots take three of ten; the server is asked for nothing more, and others find the rest in order."""
    publish(url, range(10))
    with Taker(url, 3) as taker:
        assert taker.wait_for(3) == [0, 1, 2]
        wait_until(lambda: taker.capacity._is_awaited)
        assert not is_asking(url)
        taker.free(2)
        assert taker.wait_for(5) == [0, 1, 2, 3, 4]
    assert taker.bodies == [0, 1, 2, 3, 4]
    assert left(url) == [5, 6, 7, 8, 9]


def test_a_full_process_asks_for_nothing(url):
    """No request waits at the server for a process without a free slot."""
    with Taker(url, 0) as taker:
        wait_until(lambda: taker.capacity._is_awaited)
        publish(url, [1])
        assert not is_asking(url)
        assert taker.bodies == []
    assert left(url) == [1]


def test_at_most_32_are_taken_at_once(url):
    """A process with many slots leaves to others what it has not asked for."""
    lengths = []
    publish(url, range(50))
    with Taker(url, 1000, deliver=lambda _: lengths.append(client_of(url).llen(f"{PREFIX}q"))) as taker:
        assert taker.wait_for(50) == list(range(50))
    taken = [50 - length for length in lengths[: MOST_AT_ONCE + 1]]
    assert taken[: MOST_AT_ONCE - 1] == sorted(taken[: MOST_AT_ONCE - 1])
    assert max(taken[:MOST_AT_ONCE]) == MOST_AT_ONCE
    assert taken[MOST_AT_ONCE] > MOST_AT_ONCE


def test_a_bulk_takes_one_request_or_two(url):
    """Sixty messages that wait take two requests, or with BRPOP two times two, and then one waits for others."""
    publish(url, range(60))
    client_of(url).config_resetstat()
    with Taker(url, 1000, polling_interval=10) as taker:
        taker.wait_for(60)
        calls = {name: told["calls"] for name, told in client_of(url).info("commandstats").items()}
        publish(url, [60])  # ends the request that waits
    assert calls.get("cmdstat_blmpop", 0) + calls.get("cmdstat_brpop", 0) <= 3
    assert calls.get("cmdstat_rpop", 0) <= 2


def test_prefetch_counts_as_well(url):
    """`can_consume_max_estimate`: what is not acknowledged counts, as with any channel."""
    publish(url, range(5))
    with Taker(url, 10) as taker:
        taker.wait_for(5)
        channel = taker.connection.default_channel
        channel.qos.prefetch_count = 2
        assert channel._room(10) == 2


def test_a_freed_slot_is_filled_at_once(url):
    """A freed slot leads to a request at once, not when the hub's wait ends: that would take the whole of it nearly every time."""
    publish(url, range(20))
    with Taker(url, 1) as taker:
        for count in range(1, 20):
            taker.wait_for(count)
            wait_until(lambda: taker.capacity._is_awaited)
            begun = time.monotonic()
            taker.free(1)
            taker.wait_for(count + 1)
            taker.times[-1] -= begun
    waits = sorted(taker.times[1:])
    assert waits[len(waits) // 2] < POLL_S / 2


def test_many_freed_slots_wake_the_hub_once_and_no_wait_is_no_wake_up(monkeypatch):
    """The hub is woken once for each time that it found no free slot."""
    calls = []
    hub = Hub()
    monkeypatch.setattr(hub, "call_soon", calls.append)
    capacity = Capacity(slots := Slots(0))
    capacity.wake()
    capacity.serve(hub)
    capacity.wake()
    assert calls == []
    assert not capacity.has_room()
    for _ in range(5):
        slots.free += 1
        capacity.wake()
    assert len(calls) == 1
    assert capacity.has_room()
    capacity.wake()
    assert len(calls) == 1


def test_a_slot_that_is_freed_while_the_hub_looks_is_seen():
    """Between the look and the note that someone waits, a slot may become free: it is looked at twice."""

    class Freed:
        looks = 0

        @property
        def free(self):
            self.looks += 1
            return self.looks - 1

    assert Capacity(Freed()).has_room()


def test_who_may_not_use_blmpop_is_served_with_brpop(redis_url):
    """A server may refuse the command to a user, by an ACL from before there was such a command."""
    if not knows_blmpop(redis_url):
        pytest.skip("the installed Redis is older than 7")
    client = client_of(redis_url)
    client.flushdb()
    client.acl_setuser(
        "old", enabled=True, passwords=["+old"], categories=["+@all"], commands=["-blmpop"], keys=["*"], channels=["*"]
    )
    where = urlsplit(redis_url)
    url = where._replace(netloc=f"old:old@{where.hostname}:{where.port}").geturl()
    publish(url, range(3))
    with Taker(url, 3) as taker:
        assert taker.wait_for(3) == [0, 1, 2]
        assert not taker.connection.transport.knows_blmpop
    client.acl_deluser("old")


def test_fakeredis_is_asked_for_bulks_too(tmp_path):
    """Where nothing better is installed, workers take messages in the same way."""
    ownership = Ownership.try_take(tmp_path)
    server = Redis(tmp_path, "fakeredis")
    server.start()
    publish(server.url, range(10))
    with Taker(server.url, 3) as taker:
        assert taker.wait_for(3) == [0, 1, 2]
        wait_until(lambda: taker.capacity._is_awaited)
        taker.free(2)
        assert taker.wait_for(5) == [0, 1, 2, 3, 4]
    assert left(server.url) == [5, 6, 7, 8, 9]
    server.stop()
    ownership.release()


def test_queues_take_turns_and_priorities_go_first(url):
    """kombu's round robin and its priority steps hold, in bulks."""
    for queue in ("a", "b"):
        publish(url, [f"{queue}{number}" for number in range(4)], queue)
        publish(url, [f"{queue}-late"], queue, priority=9)
    with Taker(url, 0, "a", "b") as taker:
        for count in range(2, 11, 2):
            taker.free(2)
            taker.wait_for(min(count, 10))
        bodies = taker.bodies
    assert sorted(bodies[:4]) == ["a0", "a1", "b0", "b1"]
    assert sorted(bodies[4:8]) == ["a2", "a3", "b2", "b3"]
    assert sorted(bodies[8:]) == ["a-late", "b-late"]


def test_a_queue_order_that_is_not_fair_holds_too(url):
    """`queue_order_strategy`: with `sorted`, the first queue is emptied first."""
    publish(url, ["b"] * 3, "b")
    publish(url, ["a"] * 40, "a")
    with Taker(url, 1000, "b", "a", queue_order_strategy="sorted") as taker:
        assert taker.wait_for(43) == ["a"] * 40 + ["b"] * 3


def fail_at(number):
    def deliver(body):
        if body == number:
            raise RuntimeError(body)

    return deliver


def test_what_an_error_leaves_undelivered_goes_back_in_order(url):
    """Whatever a delivery raises, the others of its bulk are where they were; that one is given back by kombu, the last."""
    publish(url, range(10))
    with Taker(url, 10, deliver=fail_at(3)) as taker:
        wait_until(lambda: taker.error)
    assert taker.bodies == [0, 1, 2]
    assert left(url) == [4, 5, 6, 7, 8, 9, 3]


def test_what_comes_after_the_last_consumer_is_cancelled_goes_back(url, caplog):
    """A paused worker gives back what was on its way, in order, and without a warning for each."""
    with Taker(url, 10, polling_interval=10) as taker:
        wait_until(lambda: is_asking(url))
        taker.hub.call_soon(taker.consumer.cancel)
        wait_until(lambda: not taker.connection.default_channel.active_queues)
        publish(url, range(3))
        wait_until(lambda: not is_asking(url))
    assert taker.bodies == []
    assert left(url) == [0, 1, 2]
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


def test_a_closed_channel_loses_nothing(url):
    """Closing reads what is on its way, asks for nothing more, and gives it back or has it delivered."""
    publish(url, range(8), "spare")
    later = threading.Timer(0.2, client_of(url).rename, (f"{PREFIX}spare", f"{PREFIX}q"))
    with Taker(url, 5, polling_interval=10) as taker:
        wait_until(lambda: is_asking(url))
        later.start()
    later.join()
    assert taker.bodies + left(url) == list(range(8))


def test_acknowledgements_in_redis_work(url):
    """`ack_emulation`: kombu's own QoS counts and acknowledges, and slots limit."""
    publish(url, range(4))
    with Taker(url, 3, ack_emulation=True) as taker:
        assert taker.wait_for(3) == [0, 1, 2]
        wait_until(lambda: taker.capacity._is_awaited)
        assert client_of(url).hlen(f"{PREFIX}unacked") == 0
    assert left(url) == [3]


def test_who_needs_no_acknowledgement_is_not_limited(url):
    """As in AMQP: replies and remote control come through although no slot is free."""
    publish(url, [1, 2])
    with (
        connection_for(Capacity(Slots(0)))(url, transport_options={"global_keyprefix": PREFIX}) as connection,
        connection.Consumer([Queue("q")], callbacks=[lambda body, _: bodies.append(body)], no_ack=True),
    ):
        bodies = []
        while len(bodies) < 2:
            connection.drain_events(timeout=60)
    assert bodies == [1, 2]


@pytest.mark.parametrize(
    ("name", "base", "is_encrypted"),
    [
        ("redis://nowhere", Transport, False),
        ("rediss://nowhere", Transport, True),
        ("rediss://nowhere?ssl_cert_reqs=required", Transport, True),
        ("sentinel://nowhere:26379;sentinel://elsewhere:26379", SentinelTransport, False),
        ("redis+socket:///nowhere", Transport, False),
    ],
)
def test_kombu_chooses_the_transport_by_the_url(name, base, is_encrypted):
    """The class of connections changes nothing of what kombu makes of a URL, not even when it switches to the next one."""
    kind = connection_for(Capacity(Slots(1)))
    connection, plain = kind(name), Connection(name)
    for _ in range(2):
        transport = connection.get_transport_cls()
        assert issubclass(transport, base)
        assert issubclass(transport.Channel, (BulkChannel, base.Channel))
        assert transport.default_port == base.default_port
        assert bool(connection.ssl) == is_encrypted
        assert (connection.as_uri(), connection.ssl) == (plain.as_uri(), plain.ssl)
        for one in (connection, plain):
            one.maybe_switch_next()
    assert isinstance(connection.clone(), kind)


@pytest.fixture
def app(url):
    """A Celery app whose workers take by free slots: four, of which each reserved message has one."""
    app = Celery("bulk", broker=url, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        task_default_queue="q",
        worker_prefetch_multiplier=1,
        broker_transport_options={"global_keyprefix": PREFIX, "ack_emulation": False},
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
    )

    class Free:
        @property
        def free(self):
            return 4 - len(state.reserved_requests)

    capacity = Capacity(Free())
    app.amqp.Connection = connection_for(capacity)
    wake = lambda **_: capacity.wake()  # noqa: E731
    signals.task_postrun.connect(wake, weak=False)
    yield app
    signals.task_postrun.disconnect(wake)


@pytest.fixture
def noted(app):
    """What the task `note` noted."""
    noted = []

    @app.task(name="note", acks_late=True, shared=False)
    def note(number):
        noted.append(number)

    app.note = note
    return noted


def worker_of(app):
    return start_worker(app, pool="threads", concurrency=4, perform_ping_check=False, shutdown_timeout=PATIENCE_S)


@pytest.fixture
def numbers(app, noted):
    """The same, with a worker that works."""
    with worker_of(app):
        yield noted


def wait_for(noted, count):
    wait_until(lambda: len(noted) >= count, what=lambda: str(noted))
    return sorted(noted)


def test_a_celery_worker_works_and_obeys(app, numbers):
    """Remote control reaches the worker, and it stops and starts consuming a queue when told to."""
    for number in range(100):
        app.note.delay(number)
    assert wait_for(numbers, 100) == list(range(100))
    [answer] = app.control.ping(limit=1, timeout=PATIENCE_S)
    assert list(answer.values()) == [{"ok": "pong"}]
    app.control.cancel_consumer("q", reply=True, limit=1, timeout=PATIENCE_S)
    app.note.delay(100)
    app.control.add_consumer("other", reply=True, limit=1, timeout=PATIENCE_S)
    app.note.apply_async((101,), queue="other")
    assert wait_for(numbers, 101)[-1] == 101
    app.control.add_consumer("q", reply=True, limit=1, timeout=PATIENCE_S)
    assert wait_for(numbers, 102) == list(range(102))


def test_a_lost_connection_loses_no_message_and_takes_none_twice(app, url, numbers):
    """Connections are closed while requests wait at the server: all is taken once, by new connections."""
    killer = client_of(url)
    for round_ in range(3):
        wait_until(lambda: is_asking(url))
        killer.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        sent = range(round_ * 20, (round_ + 1) * 20)
        for number in sent:
            app.note.delay(number)
        wait_until(lambda: set(numbers) == set(range(sent.stop)), what=lambda: str(numbers))  # noqa: B023 - at once
        # One of the round before, executed and not yet acknowledged when its connection was closed, rightly comes again.
        assert sorted(each for each in numbers if each in sent) == list(sent)


def test_each_item_of_a_bulk_is_screened(app, url, noted):
    """Law of design §4: junk between two messages is refused, one item after the other, and both messages are executed."""
    refused = []

    class Refusals:
        def record(self, error, item, *, queue):
            refused.append((queue, item))

        def record_message(self, error, message):
            refused.append((message.delivery_info["routing_key"], message))

    settings = Settings(
        database_url="postgresql://nowhere/none", broker_url="redis://nowhere", broker_key_prefix=PREFIX
    )
    gate = ItemGate(app, settings, Refusals(), {"note"}, is_alone=True)
    app.steps["consumer"].add(guarding(lambda: gate))
    app.note.delay(1)
    push(client_of(url), f"{PREFIX}q", JUNK.values())
    app.note.delay(2)
    with worker_of(app):
        assert wait_for(noted, 2) == [1, 2]
    assert len(refused) == len(JUNK)
    assert client_of(url).llen(f"{PREFIX}q") == 0
