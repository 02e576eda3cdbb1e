"""Clients whose connections are half open or cut: they notice, and the next call goes well."""

import asyncio
import shutil
import tempfile
import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from flujo_client import AsyncFlujoClient, FlujoClient, Pipeline, Step
from flujo_client.errors import ServiceUnreachable
from flujo_client.gateway import door, post
from flujo_client.transport import postgres, redis
from flujo_worker.chaos.network import POSTGRES, REDIS, Network
from flujo_worker.chaos.relay import Relay
from tests.support.fleet import Site

pytestmark = pytest.mark.services


def ship(data):
    return data


fine = Pipeline([Step("ship", ship)])


@pytest.fixture(scope="module")
def network(services, tmp_path_factory):
    """A link to the services of a site without workers."""
    folder = Path(tempfile.mkdtemp(prefix="net-", dir="/tmp"))  # a socket's name is short
    with Site(services, tmp_path_factory.mktemp("site")) as site:
        urls = site.settings.database(), site.settings.broker()
        with Network(urls, folder, 0, site.settings.with_services, is_apart=False) as network:
            yield network
    shutil.rmtree(folder)


@pytest.fixture
def relay(network):
    yield (relay := network.links[0].relays[POSTGRES])
    network.change(relay.release)


@pytest.mark.parametrize("act", [Relay.abandon, Relay.cut])
def test_an_idle_connection_that_is_gone_is_replaced(network, relay, monkeypatch, act):
    monkeypatch.setattr(door, "CHECK_S", 0.2)
    monkeypatch.setattr(door, "FRESH_S", 0.0)
    with FlujoClient(network.links[0].settings) as client:
        run = client.enqueue(fine, 1)
        network.change(partial(act, relay))
        assert client.get_run(run.id).status() == "queued"


def test_an_awaited_one_too(network, relay, monkeypatch):
    monkeypatch.setattr(door, "CHECK_S", 0.2)
    monkeypatch.setattr(door, "FRESH_S", 0.0)

    async def enqueue():
        async with AsyncFlujoClient(network.links[0].settings) as client:
            run = await client.enqueue(fine, 1)
            network.change(relay.abandon)
            return await (await client.get_run(run.id)).status()

    assert asyncio.run(enqueue()) == "queued"


def test_a_call_whose_answer_does_not_come_ends_with_an_error(network, relay, monkeypatch):
    """The connection was good a moment ago, so it is not checked; the next call makes another one."""
    monkeypatch.setattr(postgres.BoundedConnection, "answer_s", 0.3)
    monkeypatch.setattr(door, "ANSWER_S", 0.3)
    with FlujoClient(network.links[0].settings) as client:
        run = client.enqueue(fine, 1)
        run.status()
        network.change(partial(relay.hold, "answer"))
        with pytest.raises(ServiceUnreachable, match=r"no answer within 0\.3 s"):
            run.status()
        network.change(relay.release)
        assert run.status() == "queued"


@pytest.mark.parametrize("is_fresh", [True, False])
def test_a_redis_that_does_not_answer_holds_up_an_enqueue_for_seconds(network, monkeypatch, is_fresh):
    """With ten tries, a request of a web application took a minute, and so did everything else that needed its thread."""
    monkeypatch.setattr(redis, "_ANSWER_S", 0.3)
    relay = network.links[0].relays[REDIS]
    with FlujoClient(network.links[0].settings) as client:
        client.enqueue(fine, 1)
        if not is_fresh:
            monkeypatch.setattr(post, "FRESH_S", 0.0)
        network.change(partial(relay.hold, "answer"))
        began = time.monotonic()
        with nullcontext() if is_fresh else pytest.raises(ServiceUnreachable, match="does not answer"):
            assert client.enqueue(fine, 1).status() == "queued"
        took_s = time.monotonic() - began
        network.change(relay.release)
        assert client.enqueue(fine, 1).id
    assert took_s < 2


AWAY_S, SOON_S = 4.6, 2.0
"""With pauses that double, it is asked 4 and 8 seconds after the loss."""


@pytest.fixture
def gone(network, relay):
    """Let Postgres be away for a while."""
    target = relay.target

    def away():
        relay.target = "/nowhere"
        network.change(relay.cut)
        threading.Timer(AWAY_S, setattr, (relay, "target", target)).start()

    yield away
    relay.target = target


def test_a_call_that_waits_for_a_connection_has_one_soon_after_postgres_is_back(network, gone):
    with FlujoClient(network.links[0].settings) as client:
        run = client.enqueue(fine, 1)
        gone()
        time.sleep(door.FRESH_S)  # so that the connection is checked
        began = time.monotonic()
        assert run.status() == "queued"
        assert time.monotonic() - began < AWAY_S - door.FRESH_S + SOON_S


def test_an_awaited_call_too(network, gone):
    async def ask():
        async with AsyncFlujoClient(network.links[0].settings) as client:
            run = await client.enqueue(fine, 1)
            gone()
            await asyncio.sleep(door.FRESH_S)
            began = time.monotonic()
            assert await run.status() == "queued"
            return time.monotonic() - began

    assert asyncio.run(ask()) < AWAY_S - door.FRESH_S + SOON_S
