"""Pushes from the engine's event loop, on a real Redis: together, in order, and past lost connections."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from urllib.parse import urlsplit

import orjson
import pytest
import redis

from flujo_client.config.manager import Settings
from flujo_client.transport.broker import Broker
from flujo_client.transport.loop_publisher import LoopPublisher
from flujo_client.transport.redis import ConnectionLost, connect
from tests.support.builders import enqueued
from tests.support.fleet import wait_until

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def services(services_to_break):
    """Return services that no other test process uses: a test here closes every connection to Redis."""
    return services_to_break


QUEUE = "flujo.attempts"
FIRST = enqueued().first


@pytest.fixture
def broker(redis_url):
    broker = Broker(Settings(database_url="postgresql://nowhere/none", broker_url=redis_url))
    broker.redis.flushdb()
    yield broker
    broker.close()


def numbered(number, **changes):
    return replace(FIRST, address=f"a{number}", **changes)


def lying_in(broker, queue=QUEUE):
    """The addresses of what is in a queue, in the order in which workers take it."""
    items = reversed(broker.redis.lrange(queue, 0, -1))
    return [orjson.loads(item)["headers"]["id"].split(":")[1] for item in items]


def publishing(broker, act):
    """Run `act` with a publisher on a separate loop."""

    async def body():
        publisher = LoopPublisher(broker)
        try:
            return await act(publisher)
        finally:
            publisher.close()

    return asyncio.run(body())


def test_what_is_published_at_once_lies_there_once_and_in_order(broker):
    async def act(publisher):
        await asyncio.gather(*(publisher.publish([numbered(n), numbered(n + 0.5)]) for n in range(200)))

    publishing(broker, act)
    assert lying_in(broker) == [f"a{n}" for whole in range(200) for n in (whole, whole + 0.5)]


def test_what_is_published_at_one_moment_is_one_push(broker, monkeypatch):
    """Attempts that were merged together publish together, also while no push is under way."""
    pushed = []
    write = broker.pushes
    monkeypatch.setattr(broker, "pushes", lambda envelopes: pushed.append(len(envelopes)) or write(envelopes))

    async def act(publisher):
        await publisher.publish([numbered(0)])
        await asyncio.gather(*(publisher.publish([numbered(n)]) for n in range(1, 6)))

    publishing(broker, act)
    assert pushed == [1, 5]


def test_each_message_goes_to_its_own_queue(broker):
    async def act(publisher):
        await publisher.publish([numbered(1, queue="one"), numbered(2, queue="two"), numbered(3, queue="one")])

    publishing(broker, act)
    assert (lying_in(broker, "one"), lying_in(broker, "two")) == (["a1", "a3"], ["a2"])


def test_a_connection_that_is_lost_is_made_again(broker):
    """Whoever published just then may hear an error; no one waits forever, and the next push arrives."""

    async def act(publisher):
        await publisher.publish([numbered(1)])
        broker.redis.client_kill_filter(_type="normal", skipme=True)
        outcomes = await asyncio.gather(*(publisher.publish([numbered(n)]) for n in (2, 3)), return_exceptions=True)
        assert all(each is None or isinstance(each, redis.RedisError) for each in outcomes)
        await publisher.publish([numbered(4)])

    publishing(broker, act)
    arrived = lying_in(broker)
    assert (arrived[0], arrived[-1]) == ("a1", "a4")


def test_a_command_that_redis_refuses_is_an_error_for_those_who_sent_it(broker):
    broker.redis.set("taken", "no list")

    async def act(publisher):
        with pytest.raises(redis.ResponseError):
            await publisher.publish([numbered(1, queue="taken")])
        await publisher.publish([numbered(2)])

    publishing(broker, act)
    assert lying_in(broker) == ["a2"]


def test_commands_go_with_pushes_and_get_their_own_answers(broker):
    """One that Redis refuses fails with the other commands of its round trip, not with the pushes."""
    broker.redis.set("taken", "no list")

    async def act(publisher):
        await publisher.publish([numbered(0)])
        together = (
            publisher.publish([numbered(1)]),
            publisher.execute("GET", "taken"),
            publisher.execute("LLEN", QUEUE),
        )
        assert await asyncio.gather(*together) == [(), b"no list", 2]
        together = (publisher.publish([numbered(2)]), publisher.execute("LPOP", "taken"))
        pushed, refused = await asyncio.gather(*together, return_exceptions=True)
        assert (pushed, type(refused)) == ((), redis.ResponseError)
        assert await publisher.execute("LLEN", QUEUE) == 3

    publishing(broker, act)


def test_where_no_redis_is_every_publisher_hears_of_it(redis_url):
    nowhere = Broker(Settings(database_url="postgresql://nowhere/none", broker_url="redis://127.0.0.1:1/0"))

    async def act(publisher):
        outcomes = await asyncio.gather(*(publisher.publish([numbered(n)]) for n in range(3)), return_exceptions=True)
        assert [type(each) for each in outcomes] == [redis.ConnectionError] * 3

    publishing(nowhere, act)
    nowhere.close()


def test_a_redis_that_does_not_answer_keeps_no_one_waiting(broker, monkeypatch):
    monkeypatch.setattr("flujo_client.transport.loop_publisher.ANSWER_S", 0.2)

    async def act(publisher):
        await publisher.publish([numbered(1)])
        broker.redis.client_pause(1000, all=True)
        with pytest.raises(redis.TimeoutError):
            await publisher.publish([numbered(2)])

    publishing(broker, act)


def test_a_worker_may_lose_its_connection_as_often_as_it_likes(broker):
    """Each lost connection is replaced by a new one, which no pool of connections counts."""
    for _ in range(100):
        broker.new_connection()


@pytest.mark.parametrize(("patience_s", "most"), [(None, 10), (5.0, 1)])
def test_a_command_is_sent_again_when_its_connection_is_lost(redis_url, monkeypatch, patience_s, most):
    """Whatever redis-py is installed: before 6.0, it tried nothing again."""
    monkeypatch.setattr("redis.retry.sleep", bool)
    client = connect(redis_url, {}, patience_s=patience_s)
    answers = client.parse_response
    for losses in (most, most + 1):
        errors = [ConnectionLost("away")] * losses

        def lose(*args, answers=answers, errors=errors, **options):
            if errors:
                raise errors.pop()
            return answers(*args, **options)

        client.parse_response = lose
        with pytest.raises(ConnectionLost) if losses > most else nullcontext():
            assert client.ping()
    client.close()


def waiting_for(broker, queue=QUEUE):
    """A connection of another worker that waits for a message, as many have done before us."""
    other = broker.new_connection()
    other.send_command("BLPOP", queue, 0)
    wait_until(lambda: broker.redis.client_list(_type="normal") and "blpop" in str(broker.redis.client_list()))
    return other


def test_who_publishes_may_take_the_message_before_those_who_wait(broker):
    """Else the steps of a lone run would wander from worker to worker, whose caches are cold."""
    other = waiting_for(broker)
    [taken] = publishing(broker, lambda publisher: publisher.publish([numbered(1)], take=1))
    assert (orjson.loads(taken.message)["headers"]["id"], taken.own) == (numbered(1).key, numbered(1))
    assert lying_in(broker) == []
    assert not other.can_read(0)
    other.disconnect()


def test_the_oldest_message_is_taken(broker):
    async def act(publisher):
        await publisher.publish([numbered(1)])
        return await publisher.publish([numbered(2)], take=1)

    [taken] = publishing(broker, act)
    assert (orjson.loads(taken.message)["headers"]["id"], taken.own) == (numbered(1).key, None)
    assert lying_in(broker) == ["a2"]


def test_who_publishes_many_may_take_some_and_knows_them_by_their_envelopes(broker):
    async def act(publisher):
        await publisher.publish([numbered(0)])
        return await publisher.publish([numbered(n) for n in range(1, 5)], take=3)

    assert [each.own for each in publishing(broker, act)] == [None, numbered(1), numbered(2)]
    assert lying_in(broker) == ["a3", "a4"]


def test_of_messages_for_several_lists_none_is_taken(broker):
    mixed = [numbered(1), numbered(2, queue="elsewhere")]
    assert not publishing(broker, lambda publisher: publisher.publish(mixed, take=2))
    assert lying_in(broker) == ["a1"]
    broker.redis.delete("elsewhere")


def test_nothing_is_taken_for_those_who_publish_together(broker):
    async def act(publisher):
        return await asyncio.gather(*(publisher.publish([numbered(n)], take=1) for n in range(3)))

    assert publishing(broker, act) == [(), (), ()]
    assert lying_in(broker) == ["a0", "a1", "a2"]


def test_where_taking_is_not_allowed_the_message_is_published_all_the_same(broker, redis_url):
    broker.redis.acl_setuser("pusher", enabled=True, passwords=["+x"], keys=["*"], commands=["+@all", "-rpop"])
    place = urlsplit(redis_url)
    url = place._replace(netloc=f"pusher:x@{place.netloc.rpartition('@')[2]}").geturl()
    restricted = Broker(Settings(database_url="postgresql://nowhere/none", broker_url=url))

    async def act(publisher):
        first = await publisher.publish([numbered(1)], take=1)
        return first, await publisher.publish([numbered(2)], take=1)

    assert publishing(restricted, act) == ((), ())
    assert lying_in(broker) == ["a1", "a2"]
    restricted.close()
    broker.redis.acl_deluser("pusher")


def test_a_push_that_fails_beside_a_taking_is_an_error(broker):
    broker.redis.set("taken", "no list")

    async def act(publisher):
        with pytest.raises(redis.ResponseError):
            await publisher.publish([numbered(1, queue="taken")], take=1)
        await publisher.publish([numbered(2)], take=1)

    publishing(broker, act)
    broker.redis.delete("taken")
