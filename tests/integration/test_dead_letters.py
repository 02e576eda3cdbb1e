"""Refused messages on a real Redis: a bounded list, counts by reason, and a sweep over a list with junk in it."""

import json

import orjson
import pytest
import redis
from celery import Celery

from flujo_client.config.manager import Settings
from flujo_client.transport.broker import Broker
from flujo_client.transport.dead_letters import MAX_ENTRIES, MOST_BYTES, DeadLetters, Refused
from flujo_client.transport.messages import SENT_HEADER
from flujo_worker.celery_app.consumer.refusals import Refusals
from flujo_worker.engine.dispatch import RedisPublisher
from flujo_worker.errors import WireError
from tests.support.junk import JUNK, push

pytestmark = pytest.mark.services


@pytest.fixture
def settings(redis_url) -> Settings:
    return Settings(database_url="postgresql://nowhere/none", broker_url=redis_url, broker_key_prefix="shop:")


@pytest.fixture
def lists(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        yield client


def test_nothing_was_refused_yet(settings, lists):
    assert Broker(settings).refused() == Refused({}, 0, None, "shop:flujo:dead_letters")


def test_the_last_thousand_are_kept_and_all_are_counted(settings, lists):
    """SYS-27: whoever floods a queue fills no Redis."""
    letters = DeadLetters(lists, "shop:")
    for number in range(MAX_ENTRIES + 5):
        letters.add("malformed" if number % 2 else "foreign", b"%d" % number, queue="q")
    refused = Broker(settings).refused()
    assert (refused.count, refused.kept) == (MAX_ENTRIES + 5, MAX_ENTRIES)
    assert refused.reasons == {"foreign": 503, "malformed": 502}
    assert refused.last_at is not None
    newest, oldest = (orjson.loads(lists.lindex(refused.key, at))["item"] for at in (0, -1))
    assert (newest, oldest) == ("1004", "5")


def test_the_newest_are_read_without_their_contents(settings, lists):
    Refusals(lambda: settings).record(WireError("older", reason="foreign"), b"first", queue="q")
    Refusals(lambda: settings).record(WireError("no \ud800 message", reason="malformed"), b"secret", queue="q\ud800")
    [letter] = Broker(settings).dead_letters(1)
    assert (letter.reason, letter.queue, letter.bytes) == ("malformed", "q\ufffd", 6)
    assert "secret" not in repr(letter)


@pytest.mark.parametrize("item", [JUNK["ten megabytes of zeros"], b"\xff" * 100_000, b'"\\ud800"' * 3])
def test_what_is_kept_is_cut(settings, lists, item):
    """Whatever it is, it can be read by people, and takes a few kilobytes."""
    Refusals(lambda: settings).record(WireError("no \ud800 message", reason="malformed"), item, queue="q\ud800")
    [letter] = lists.lrange("shop:flujo:dead_letters", 0, -1)
    told = json.loads(letter)
    assert (told["reason"], told["bytes"]) == ("malformed", len(item))
    assert len(letter) < 8 * MOST_BYTES


def test_a_redis_that_takes_nothing_stops_no_one(settings, caplog):
    """The refusal is logged all the same."""
    away = settings.with_services(settings.database(), "redis://127.0.0.1:1")
    Refusals(lambda: away).record(WireError("it is no object", reason="malformed"), b"5", queue="q")
    assert "message in 'q' refused as malformed: it is no object (1 bytes)" in caplog.text


@pytest.mark.parametrize("name", JUNK)
def test_junk_at_the_head_of_a_list_was_sent_at_no_time(settings, lists, name):
    """M-012: a sweep compares the head's time with its rows', and must not stumble over what says none."""
    push(lists, "shop:flujo.attempts", [JUNK[name]])
    app = Celery(backend=settings.broker(), set_as_current=False)
    assert RedisPublisher(settings, app).heads(["flujo.attempts"]) == {"flujo.attempts": 0.0}


@pytest.mark.parametrize("said", ["nan", "inf", 1e300, -1, "soon", [], None, 10**400])
def test_a_head_that_tells_an_impossible_time_was_sent_at_no_time(settings, lists, said):
    """Postgres knows no such time: it would end every sweep for as long as the item lies there."""
    text = str(said) if said == 10**400 else orjson.dumps(said).decode()
    push(lists, "shop:flujo.attempts", [f'{{"headers": {{"{SENT_HEADER}": {text}}}}}'.encode()])
    app = Celery(backend=settings.broker(), set_as_current=False)
    assert RedisPublisher(settings, app).heads(["flujo.attempts"]) == {"flujo.attempts": 0.0}
