"""One push for each queue, and several where one would be too large."""

import base64
from dataclasses import replace

import fakeredis
import orjson
import pytest

from flujo_client.config.manager import Settings
from flujo_client.transport import broker
from flujo_client.transport.broker import Broker
from tests.support.builders import enqueued, packed


class CountingRedis(fakeredis.FakeRedis):
    pushed = ()

    def lpush(self, name, *values):
        self.pushed += (len(values),)
        return super().lpush(name, *values)


@pytest.fixture
def out():
    out = Broker(Settings(database_url="postgresql://nowhere/none", broker_url="redis://nowhere"))
    out.redis = CountingRedis()
    return out


def envelopes(count, value="in", **rest):
    first = replace(enqueued().first, input=packed(value), **rest)
    return [replace(first, number=number + 1) for number in range(count)]


def taken(out, queue="flujo.attempts"):
    """The ids of a queue's messages, as a worker takes them: from the other end."""
    return [orjson.loads(raw)["headers"]["id"] for raw in reversed(out.redis.lrange(queue, 0, -1))]


def test_what_goes_out_together_is_one_push_for_each_queue(out):
    here, there = envelopes(300), envelopes(5, queue="slow")
    out.publish([*here, *there])
    assert out.redis.pushed == (300, 5)
    assert taken(out) == [each.key for each in here]
    assert taken(out, "slow") == [each.key for each in there]


@pytest.mark.parametrize("count", [999, 1000, 1001, 2500])
def test_a_large_fan_out_is_pushed_in_parts(out, count):
    """Redis serves no one else while it takes a push."""
    sent = envelopes(count)
    out.publish(sent)
    assert taken(out) == [each.key for each in sent]
    assert max(out.redis.pushed) <= 1000
    assert len(out.redis.pushed) == -(-count // 1000)


def test_large_messages_are_pushed_in_parts(out, monkeypatch):
    monkeypatch.setattr(broker, "PUSH_BYTES", 10_000)
    sent = envelopes(7, value=[f"{n:x}" for n in range(0, 10**12, 10**9 + 7)][:200])
    out.publish(sent)
    assert taken(out) == [each.key for each in sent]
    lengths = [len(raw) for raw in out.redis.lrange("flujo.attempts", 0, -1)]
    assert sum(lengths) > 10_000
    assert len(out.redis.pushed) > 1
    assert max(out.redis.pushed) * min(lengths) <= 10_000


def test_a_message_above_the_limit_is_pushed_by_itself(out, monkeypatch):
    monkeypatch.setattr(broker, "PUSH_BYTES", 10)
    out.publish(envelopes(3))
    assert out.redis.pushed == (1, 1, 1)


def test_a_join_goes_out_as_its_doorbell(out):
    """Whatever its context and input: the message holds ids only."""
    [join] = envelopes(1, address="loop#1/f", step="f", kind="join", queue="flujo.control", value="x" * 1000)
    out.publish([join])
    [message] = map(orjson.loads, out.redis.lrange("flujo.control", 0, -1))
    args, kwargs, _ = orjson.loads(base64.b64decode(message["body"]))
    assert args == [[], {"v": 1, "task": "flujo.join", "key": join.key}]
    assert kwargs == {}
    assert message["headers"]["task"] == "flujo.join"


@pytest.mark.parametrize(("kind", "task"), [("step", "flujo.attempt"), ("start", "flujo.start")])
def test_each_kind_of_work_has_its_task(out, kind, task):
    """M-004: what a message asks for is in its name, and names are few."""
    out.publish(envelopes(1, kind=kind))
    [message] = map(orjson.loads, out.redis.lrange("flujo.attempts", 0, -1))
    assert message["headers"]["task"] == task
