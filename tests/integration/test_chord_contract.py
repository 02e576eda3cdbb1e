"""Behaviour of Celery's chords on Redis that we rely on, so that an upgrade which changes it fails loudly.

Parts are returned as a worker returns them at the end of a task; where the worker itself matters, there is a real one.
"""

import asyncio
import base64
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import celery.backends.redis
import orjson
import pytest
import redis
from celery import _state
from celery.app import trace
from celery.app.task import Context
from celery.contrib.testing.worker import start_worker

from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import TASK_JOIN
from flujo_client.errors import SerializationError
from flujo_client.transport.broker import Broker, celery_message
from flujo_client.transport.chords import group_of, membership
from flujo_client.transport.messages import task_message
from flujo_client.transport.wire import dump, load, register
from flujo_worker.attempts.isolation import DeliveryResult
from flujo_worker.celery_app.app import _carry
from flujo_worker.celery_app.consumer.chord_parts import ChordCounter, ChordPart
from flujo_worker.celery_app.own_app import own_app
from flujo_worker.engine.dispatch import RedisPublisher
from tests.support.builders import enqueued
from tests.support.fleet import wait_until

pytestmark = pytest.mark.services

CONTROL = "flujo.control"
OUTER, INNER = "outer", "outer/left/inner"
JOIN = "run:outer:outer:join"
KEYS = (("new", b"a secret of sixteen bytes"), ("old", b"another secret of sixteen"))


@pytest.fixture
def settings(redis_url) -> Settings:
    return Settings(database_url="postgresql://nowhere/none", broker_url=redis_url)


@pytest.fixture
def lists(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        yield client


def join(*_):
    """The task whose backend counts."""


@pytest.fixture
def app(settings, monkeypatch):
    """Our app, as in a worker's process: any thread's current app, which Celery before 5.6 looks for a chord's group with."""
    monkeypatch.setattr(_state, "default_app", None)
    monkeypatch.setattr(_state._tls, "current_app", None)
    register()
    app = own_app(settings)
    app.task(join, name=TASK_JOIN, shared=False)
    trace.setup_worker_optimizations(app)
    yield app
    trace.reset_worker_optimizations(app)
    app.close()
    register()


def member(lane, step="a"):
    """The first attempt of a branch of OUTER."""
    first = enqueued(run_id="run").first
    return replace(first, address=f"{OUTER}/b{lane}", step=step, lanes={OUTER: lane})


class Parts:
    """Returns parts of the chord of OUTER as a worker would at the end of a task, and tells who rang."""

    def __init__(self, app, lists, settings, size):
        self.app, self.lists, self.post = app, lists, RedisPublisher(settings, app)
        self.post.open_chord("run", OUTER, size)

    def come(self, task_id, lane, result=None, state="SUCCESS", **lanes):
        part = membership("run", lanes or {OUTER: lane}, queue=CONTROL)
        request = Context(id=task_id, group=part["group_id"], group_index=part["group_index"], chord=part["chord"])
        if state == "SUCCESS":
            self.app.backend.mark_as_done(task_id, result, request, store_result=False)
        else:
            self.app.backend.mark_as_failure(task_id, result, request=request, store_result=False, state=state)

    def rings(self):
        """What came with each ring: the parts, and which join was rung for."""
        return [
            (parts, wire["key"])
            for raw in self.lists.lrange(CONTROL, 0, -1)
            for parts, wire in [load(base64.b64decode(orjson.loads(raw)["body"]))[0]]
        ]

    def lanes(self):
        """The lanes whose parts are back, and not yet cleared away."""
        return [int(lane) for _, lane in self.lists.zrange(self.key(".j"), 0, -1, withscores=True)]

    def key(self, suffix):
        """A Redis key of the chord: .j its parts, .s its size, .c the claim to ring, or that it was rung."""
        return self.app.backend.get_key_for_group(group_of("run", OUTER), suffix)


@pytest.fixture
def parts_of(app, lists, settings):
    return lambda size: Parts(app, lists, settings, size)


def test_a_chord_rings_when_its_last_part_is_back(parts_of):
    """M-007: size first, members after; the body is published once, with a part for each lane in the order of lanes."""
    chord_ = parts_of(3)
    for lane in (2, 0):
        chord_.come(f"task-{lane}", lane, f"result {lane}")
        assert chord_.rings() == []
    chord_.come("task-1", 1, "result 1")
    assert chord_.rings() == [(["result 0", "result 1", "result 2"], JOIN)]


def test_a_delivery_that_is_doubled_counts_once(parts_of):
    """A part is known by its task and its result. Every delivery of ours returns None; before Celery 5.7, another result would count too."""
    chord_ = parts_of(2)
    for _ in range(3):
        chord_.come("task-0", 0)
    assert chord_.rings() == []
    chord_.come("task-1", 1)
    assert chord_.rings() == [([None, None], JOIN)]


def test_late_parts_of_a_chord_that_rang_do_not_ring_again(parts_of, lists):
    """What they leave in Redis expires, as do all parts."""
    chord_ = parts_of(1)
    for _ in range(3):
        chord_.come("task-0", 0)
        chord_.come("task-9", 9)
    assert len(chord_.rings()) == 1
    assert not lists.exists(chord_.key(".s"))
    left = lists.keys(f"*{group_of('run', OUTER)}*")
    assert left
    assert all(lists.ttl(key) > 0 for key in left)


def test_a_size_that_is_written_again_forgets_that_the_chord_rang(parts_of):
    """Why only the delivery whose commit made a fan-out opens its chord: opened again, it rings again."""
    chord_ = parts_of(1)
    chord_.come("task-0", 0)
    chord_.post.open_chord("run", OUTER, 1)
    chord_.come("task-0", 0)
    assert len(chord_.rings()) == 2


def test_a_chord_without_a_size_never_rings(parts_of, lists):
    """A size that Redis lost leaves the join to the sweeper."""
    chord_ = parts_of(1)
    lists.flushdb()
    chord_.come("task-0", 0)
    assert chord_.rings() == []


def test_a_part_that_failed_spoils_its_chord(parts_of):
    """Why a member's error becomes Ignore: the body never comes, even if the same work succeeds when it is done again."""
    chord_ = parts_of(2)
    chord_.come("task-0", 0, ValueError("no"), state="FAILURE")
    chord_.come("task-0", 0)
    chord_.come("task-1", 1)
    assert chord_.rings() == []


def test_an_inner_chord_that_fails_hangs_the_outer_one(parts_of, lists):
    """Celery returns no part for a body that it never published. Fails when that is mended."""
    outer = parts_of(1)
    outer.post.open_chord("run", INNER, 1)
    outer.come("task-0", 0, ValueError("no"), state="FAILURE", **{OUTER: 0, INNER: 0})
    assert outer.rings() == []
    assert lists.get(outer.key(".s")) == b"1"
    assert outer.lanes() == []


def test_the_body_is_signed_by_celery_and_repeats_what_headers_say(parts_of, lists):
    """M-014: Celery publishes it through our serializer. Headers are not signed, so a swapped one is found by comparing."""
    register(KEYS)
    parts_of(1).come("task-0", 0)
    message = orjson.loads(lists.lpop(CONTROL))
    body = base64.b64decode(message["body"])
    assert body.startswith(b"fw1:new:")
    (_, wire), _, _ = load(body, keys=KEYS)
    assert (wire["task"], wire["key"]) == (message["headers"]["task"], message["headers"]["id"])
    with pytest.raises(SerializationError):
        load(body.replace(b"outer", b"inner"), keys=KEYS)


class Threadless:
    """Calls at once."""

    async def call(self, function, *args):
        return function(*args)


@pytest.fixture
def count(app, settings):
    """Counts branches by their lanes, as a worker of ours does when they are closed together."""
    part = membership("run", {OUTER: 0}, queue=CONTROL)

    def counted(*lanes, execute=None, ids="task"):
        parts = [ChordPart(f"{ids}-{lane}", part["group_id"], lane, part["chord"]) for lane in lanes]
        counter = ChordCounter(app, Threadless(), execute)

        async def together():
            await asyncio.gather(*map(counter.count, parts))

        asyncio.run(together())

    return counted


def test_parts_are_counted_together_up_to_the_one_that_completes_their_chord(parts_of, count, app, monkeypatch):
    """Celery counts only the last part, in whichever process it ends, and signals."""
    chord_, by_celery = parts_of(4), []
    once = app.backend.on_chord_part_return
    monkeypatch.setattr(
        app.backend, "on_chord_part_return", lambda part, *rest: by_celery.append(part.id) or once(part, *rest)
    )
    count(2, 0, 2, 0)
    assert (chord_.lanes(), by_celery, chord_.rings()) == ([0, 2], [], [])
    count(1, 1, 0, 3)
    assert by_celery == ["task-3"]
    assert chord_.rings() == [([None] * 4, JOIN)]
    count(0, 3)  # late
    assert len(chord_.rings()) == 1


def test_parts_that_we_count_and_parts_that_celery_counts_are_the_same(parts_of, count, lists):
    """A part that both count counts once, and what is in Redis expires as Celery's own does."""

    def stored(chord_):
        return lists.zrange(chord_.key(".j"), 0, -1, withscores=True), lists.smembers(chord_.key(".d"))

    ours = parts_of(3)
    count(0, 1)
    kept = stored(ours)
    assert all(lists.ttl(key) > 600_000 for key in lists.keys("*chord:*"))
    lists.flushdb()
    theirs = parts_of(3)
    theirs.come("task-0", 0)
    theirs.come("task-1", 1)
    assert stored(theirs) == kept
    count(0, 1)
    assert theirs.rings() == []
    theirs.come("task-2", 2)
    assert theirs.rings() == [([None] * 3, JOIN)]


def test_a_complete_chord_whose_signal_was_not_sent_is_celerys(parts_of, count, lists):
    """Who counted the last part died before the signal: a part that comes again sends it, once nobody claims to be sending it."""
    chord_ = parts_of(2)
    count(0)
    lists.set(chord_.key(".c"), "the claim of a process that was killed", ex=60)
    count(1)
    assert chord_.rings() == [] or not hasattr(celery.backends.redis.RedisBackend, "chord_expires")
    lists.delete(chord_.key(".c"))
    count(1)
    assert chord_.rings()[0] == ([None] * 2, JOIN)


@pytest.mark.parametrize("rounds", [6, pytest.param(120, marks=pytest.mark.chaos)])
def test_the_last_parts_that_processes_count_at_one_time_signal(app, parts_of, count, lists, settings, rounds):
    """Whichever process has the last part, alone or as one that is counted twice: the chord signals, and since Celery 5.7 once."""
    draw, once = random.Random(7), hasattr(app.backend, "chord_expires")
    for number in range(rounds):
        lists.flushdb()
        chord_, lanes = parts_of(8), draw.sample(range(8), 8)
        cut, doubled = draw.randrange(1, 8), draw.sample(range(8), number % 3)
        shares, start = (lanes[:cut] + doubled, lanes[cut:]), threading.Barrier(2)

        def process(share, start=start):
            start.wait()
            count(*share)

        with ThreadPoolExecutor(2) as processes:
            list(processes.map(process, shares))
        rings = chord_.rings()
        assert rings[:1] == [([None] * 8, JOIN)], (number, shares)
        assert len(rings) == 1 or not once, (number, shares)


def test_parts_that_redis_refuses_to_count_together_are_counted_one_by_one(parts_of, count):
    chord_ = parts_of(3)

    async def refuse(*_):
        raise redis.ResponseError("NOPERM this user has no permissions to run the 'eval' command")

    count(0, 1, 2, execute=refuse)
    assert chord_.rings() == [([None] * 3, JOIN)]


class Host:
    """Carries out what a step is called."""

    def deliver(self, _task, wire, *, task_id):
        assert task_id
        if wire["step"] == "failed":
            raise ValueError("no")
        return DeliveryResult("merged", wire["step"] != "left")


@pytest.fixture(params=["plain", "wrapped"])
def toys(app, request, settings):
    """Our tasks on a worker with one thread, so that what was sent first is over first; also as an application's own class of tasks."""

    class Wrapped(app.Task):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs)

    if request.param == "wrapped":
        app.Task = Wrapped
    _carry(app, Host, lambda: None, lambda: settings)
    queues = ["flujo.attempts"]
    with start_worker(app, pool="threads", concurrency=1, queues=queues, perform_ping_check=False, loglevel="CRITICAL"):
        yield


@pytest.mark.parametrize("step", ["left", "failed"])
def test_who_leaves_and_who_raises_ignore_returns_no_part(parts_of, toys, settings, step):
    """A member that hands its lane on leaves the chord, one that failed raises Ignore: the lane's part is still to come."""
    chord_ = parts_of(3)
    Broker(settings).publish([member(0, step=step), member(1)])
    wait_until(lambda: 1 in chord_.lanes())
    assert chord_.lanes() == [1]


def test_an_unknown_task_name_returns_no_part(parts_of, toys, settings, lists):
    """Celery drops the message without a word to its chord, which hangs: so our task names never change."""
    chord_ = parts_of(2)
    part = membership("run", {OUTER: 0}, queue=CONTROL)
    body = dump(((), {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": part["chord"]}))
    headers = {"group": part["group_id"], "group_index": 0}
    renamed = celery_message(
        task_message("flujo.renamed", body, task_id="task-0", queue="flujo.attempts", headers=headers, priority=None)
    )
    lists.lpush("flujo.attempts", renamed)
    Broker(settings).publish([member(1)])
    wait_until(lambda: 1 in chord_.lanes())
    assert chord_.lanes() == [1]
    assert chord_.rings() == []
