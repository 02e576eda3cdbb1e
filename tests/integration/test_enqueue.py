"""Enqueue as a client does it with real services: one commit, marks afterwards, and a Redis that goes away (M-001, M-010)."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from flujo_client import AsyncFlujoClient, Pipeline, Step
from flujo_client.errors import ServiceUnreachable
from flujo_client.gateway import post
from tests.support.fleet import wait_until

pytestmark = pytest.mark.services

NEVER_CLOSES = """
from flujo_client import FlujoClient

client = FlujoClient()
print(client.enqueue("test_enqueue:fine", 1).id)
"""


def ship(data):
    return data


fine = Pipeline([Step("ship", ship)])


@pytest.fixture(scope="module")
def services(services_to_break):
    """Return services that no other test process uses: a test here kills Redis."""
    return services_to_break


@contextmanager
def killed_redis(services):
    pid = services.redis_pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: services.how_they_ended() is not None)
    try:
        yield
    finally:
        services.restart_redis()


def marks(site, *runs):
    """How each run's first row is marked."""
    found = site.rows(
        "SELECT status, sends FROM flujo_attempts WHERE run_id = ANY(%(runs)s)",
        runs=[getattr(run, "id", run) for run in runs],
    )
    return {(row["status"], row["sends"]) for row in found}


def test_runs_are_marked_as_sent_once(site):
    runs = [site.client.enqueue(fine, 1) for _ in range(20)]
    wait_until(lambda: marks(site, *runs) == {("queued", 1)}, what=lambda: str(marks(site, *runs)))


def test_a_client_that_is_closed_has_marked_its_runs(site):
    with type(site.client)(site.settings) as client:
        run = client.enqueue(fine, 1)
    assert marks(site, run) == {("queued", 1)}


def test_a_process_that_never_closes_its_client_marks_its_runs(site):
    here = Path(__file__).parent
    search_path = os.pathsep.join([str(here), str(here.parent)])
    environment = {**os.environ, **site.settings.as_environment(), "PYTHONPATH": search_path}
    ended = subprocess.run(
        [sys.executable, "-c", NEVER_CLOSES], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert marks(site, ended.stdout.strip()) == {("queued", 1)}


def test_an_awaited_client_marks_its_runs_while_it_lives_and_when_it_is_closed(site):
    async def enqueue():
        async with AsyncFlujoClient(site.settings) as client:
            early = [await client.enqueue(fine, 1) for _ in range(5)]
            await asyncio.to_thread(wait_until, lambda: marks(site, *early) == {("queued", 1)})
            return await client.enqueue(fine, 1)

    late = asyncio.run(asyncio.wait_for(enqueue(), 60))
    assert marks(site, late) == {("queued", 1)}


def test_a_run_that_meets_a_redis_which_has_just_died_is_left_to_the_sweeper(site, services, monkeypatch):
    """It answered a moment ago, so it is not asked; the run is recorded and not marked. The next one is refused before anything is."""
    monkeypatch.setattr(post, "FRESH_S", 60.0)  # it takes a second to die
    assert site.client.enqueue(fine, 1).is_new
    with killed_redis(services):
        late = site.client.enqueue(fine, 1)
        assert late.is_new
        with pytest.raises(ServiceUnreachable, match="broker does not answer"):
            site.client.enqueue(fine, 1, idempotency_key="refused")
        with pytest.raises(ServiceUnreachable, match=r"broker does not answer.*; nothing is recorded"):
            site.client.enqueue_many(fine, [1, 2])
    assert marks(site, late) == {("ready", 0)}
    assert site.rows("SELECT 1 FROM flujo_runs WHERE idempotency_key = 'refused'") == []
    wait_until(lambda: _answers(site))
    assert site.client.enqueue(fine, 1, idempotency_key="refused").is_new


def _answers(site):
    try:
        return site.redis.ping()
    except redis.RedisError:
        return False
