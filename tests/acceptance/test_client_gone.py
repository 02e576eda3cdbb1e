"""The client's death at any moment, its own transactions, and the same order given twice."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from flujo_client.api.client import AsyncFlujoClient
from flujo_client.errors import IdempotencyConflict, RunExpired
from tests.support.fleet import STEPS, Site, assert_merged_once, wait_until

pytestmark = pytest.mark.acceptance

THREE = ["first", "second", "third"]
DIES_AFTER_ENQUEUE = """
import os, signal, sys
from flujo_client import FlujoClient

FlujoClient().enqueue("acceptance_pipelines:three", [], idempotency_key=sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""
DIES_BEFORE_PUBLISH = """
import os, signal, sys
from flujo_client import ConfigManager
from flujo_client.api import operations
from flujo_client.gateway.door import SyncRunner
from flujo_client.gateway.effects import Publish

settings = ConfigManager().settings()
def until_publish(operation):
    answer = None
    while not isinstance(effect := operation.send(answer), Publish):
        answer = yield effect
    os.kill(os.getpid(), signal.SIGKILL)

SyncRunner(settings).perform(until_publish(operations.enqueue(settings, "acceptance_pipelines:three", [], {"idempotency_key": sys.argv[1]})))
"""


@pytest.fixture(scope="module", autouse=True)
def fleet(site):
    return site.workers()


@pytest.mark.parametrize("script", [DIES_AFTER_ENQUEUE, DIES_BEFORE_PUBLISH], ids=["after enqueue", "before publish"])
def test_a_run_needs_no_client(site, script):
    """M-001: the client is killed; the run completes, and another client, which finds it by its key, reads its result."""
    environment = {**os.environ, **site.settings.as_environment(), "PYTHONPATH": str(STEPS)}
    key = str(len(script))
    died = subprocess.run([sys.executable, "-c", script, key], env=environment, check=False)
    assert died.returncode == -signal.SIGKILL
    found = site.enqueue("three", idempotency_key=key)
    assert not found.is_new
    assert_merged_once(site, found, THREE)


def test_a_run_of_a_transaction_that_is_rolled_back_never_was(site):
    """M-001, design §7: enqueue inside the caller's own transaction."""
    with site.connection() as connection:
        run = site.enqueue("three", connection=connection)
        connection.rollback()
    assert site.rows("SELECT 1 FROM flujo_runs WHERE id = %(run)s", run=run.id) == []
    assert site.attempts(run.id) == []


def test_a_run_of_a_committed_transaction_is_published_by_a_sweep(site):
    """M-001, design §7: nothing runs before the commit, and then it does without anyone's doing."""
    with site.connection() as connection:
        run = site.enqueue("three", connection=connection)
        assert site.rows("SELECT 1 FROM flujo_runs WHERE id = %(run)s", run=run.id) == []
    site.wait_for_execution(run.id, "first")
    assert_merged_once(site, run, THREE)


def test_a_run_of_a_committed_transaction_can_be_published_at_once(services, tmp_path):
    """M-001, design §7: run.publish() after the commit, here where no worker sweeps."""
    with Site(services, tmp_path) as site:
        with site.connection() as connection:
            run = site.enqueue("three", connection=connection)
        assert site.redis.llen("flujo.attempts") == 0
        run.publish()
        assert site.redis.llen("flujo.attempts") == 1
        assert [each["status"] for each in site.attempts(run.id)] == ["queued"]


def test_the_same_key_gives_the_same_run(site):
    """M-010: and for other work it is refused, with the key and the run named."""
    first = site.enqueue("three", idempotency_key="same")
    second = site.enqueue("three", idempotency_key="same")
    assert (second.id, first.is_new, second.is_new) == (first.id, True, False)
    with pytest.raises(IdempotencyConflict, match=f"'same' is already used by run {first.id}"):
        site.enqueue("three", ["other"], idempotency_key="same")
    assert site.enqueue("three", idempotency_key="same", tenant="acme").is_new


def test_the_same_key_gives_the_same_run_to_an_async_client(site):
    """M-010: the twin, and fifty at once make one run."""

    async def enqueue_many():
        async with AsyncFlujoClient(site.settings) as client:
            orders = [client.enqueue("acceptance_pipelines:three", [], idempotency_key="async") for _ in range(50)]
            runs = await asyncio.gather(*orders)
            with pytest.raises(IdempotencyConflict):
                await client.enqueue("acceptance_pipelines:three", ["other"], idempotency_key="async")
            return runs, await runs[0].result(timeout=60)

    runs, result = asyncio.run(enqueue_many())
    assert len({run.id for run in runs}) == 1
    assert sum(run.is_new for run in runs) == 1
    assert result.output == THREE


def test_a_run_past_its_deadline_expires(site):
    """M-010, design §3: its running attempt is cancelled, and told so."""
    run = site.enqueue("gated", deadline_s=4.0)
    site.wait_for_execution(run.id, "gate")
    result = run.result(timeout=60)
    assert result.run_status == "expired"
    assert [(each["step"], each["status"]) for each in site.attempts(run.id)] == [
        ("before", "succeeded"),
        ("gate", "cancelled"),
    ]
    wait_until((site.folder / f"cancelled-{run.id}").exists, what="the coroutine is cancelled")
    with pytest.raises(RunExpired):
        result.raise_for_status()
