"""The backends of cached results: one suite for memory and Redis, and the guarantees of each."""

import socket
import time

import pytest
import redis

from flujo_client.config.manager import Settings
from flujo_client.pipeline.cache import MOST_ENTRIES, InMemoryCache
from flujo_worker.guards import result_cache
from flujo_worker.guards.result_cache import PATIENCE_S, PREFIX, RedisCache
from tests.support.fleet import wait_until

KEY = "price:" + "0" * 64


@pytest.fixture(scope="module")
def settings(redis_url):
    return Settings(database_url="postgresql://x", broker_url=redis_url, broker_key_prefix="ours:")


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.services)])
def backend(request):
    """A backend with nothing in it."""
    if request.param == "memory":
        yield InMemoryCache()
        return
    cache = RedisCache(request.getfixturevalue("settings"))
    cache._redis.flushdb()
    yield cache
    cache.close()


def test_what_is_kept_comes_back_byte_for_byte(backend):
    value = bytes(range(256))
    assert backend.get(KEY) is None
    backend.set(KEY, value, 60)
    assert (backend.get(KEY), backend.get("Honig ä"), backend.get(KEY[:-1])) == (value, None, None)


def test_the_last_value_counts(backend):
    for value in (b"one", b"two"):
        backend.set(KEY, value, 60)
    assert backend.get(KEY) == b"two"


def test_what_is_forgotten_is_gone(backend):
    backend.set(KEY, b"x", 60)
    for _ in range(2):
        backend.delete(KEY)
    assert backend.get(KEY) is None


def test_a_value_is_kept_for_its_time(backend):
    """Requirements §2.11: seconds; 0 is forever."""
    backend.set("for good", b"x", 0)
    backend.set(KEY, b"x", 0.05)
    wait_until(lambda: backend.get(KEY) is None, 60)
    assert backend.get("for good") == b"x"


def test_a_new_time_counts_from_now(backend):
    backend.set(KEY, b"x", 0.05)
    backend.set(KEY, b"y", 0)
    time.sleep(0.1)
    assert backend.get(KEY) == b"y"


def test_memory_keeps_what_was_used_last():
    """Requirements §2.11: 1024 entries."""
    cache = InMemoryCache()
    for number in range(MOST_ENTRIES):
        cache.set(f"k{number}", b"x", 0)
    cache.get("k0")
    cache.set("one more", b"x", 0)
    assert (MOST_ENTRIES, cache.get("k0"), cache.get("k1"), cache.get("k2")) == (1024, b"x", None, b"x")


def test_memory_goes_by_a_clock_that_only_grows():
    now = [0.0]
    cache = InMemoryCache(clock=lambda: now[0])
    cache.set(KEY, b"x", 10)
    found = []
    for now[0] in (9.9, 10.0):
        found.append(cache.get(KEY))
    assert found == [b"x", None]


@pytest.mark.services
def test_redis_has_keys_of_its_own(settings, redis_url):
    """Under the prefix of all keys, by the step's name, each with its time."""
    cache = RedisCache(settings)
    cache.set(KEY, b"x", 3600)
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys("*cache*") == [f"ours:{PREFIX}{KEY}".encode()]
        assert 3_599_000 < client.pttl(f"ours:{PREFIX}{KEY}") <= 3_600_000
    cache.close()


def waited_s(port):
    """Ask a Redis that does not answer; say how many seconds that took."""
    away = Settings(database_url="postgresql://x", broker_url=f"redis://127.0.0.1:{port}/0")
    cache, before = RedisCache(away), time.monotonic()
    with pytest.raises(redis.RedisError):
        cache.get(KEY)
    return time.monotonic() - before


def test_a_redis_that_is_away_is_not_waited_for():
    assert waited_s(1) < PATIENCE_S


def test_a_redis_that_hangs_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(result_cache, "PATIENCE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        assert waited_s(hanging.getsockname()[1]) >= 0.5
        hanging.setblocking(False)
        hanging.accept()[0].close()
        with pytest.raises(BlockingIOError):  # it is not asked again
            hanging.accept()
