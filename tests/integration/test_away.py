"""A client while Postgres is read-only or restarts: an error that names the cause, or a wait; never a traceback."""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from click.testing import CliRunner

from flujo_client import AsyncFlujoClient, FlujoClient, Pipeline, Step
from flujo_client.api import operations
from flujo_client.cli.main import cli
from flujo_client.errors import ClientError, ServiceUnreachable
from flujo_client.gateway.effects import AwaitRun
from flujo_worker.store.migrate import migrate
from tests.support.services import read_only

pytestmark = pytest.mark.services


def ship(data):
    return data


fine = Pipeline([Step("ship", ship)])


@pytest.fixture(scope="module")
def services(services_to_break):
    """Return services that no other test process uses: tests here restart Postgres and make it read-only."""
    return services_to_break


def test_what_a_read_only_server_refuses_is_told_and_nothing_is_recorded(site, services):
    """M-428: the error says what is the matter and what to do; the same call goes well afterwards."""
    run = site.client.enqueue(fine, 1)
    with read_only(services):
        for act in (lambda: site.client.enqueue(fine, 1, idempotency_key="k"), run.cancel):
            with pytest.raises(ServiceUnreachable, match="does not accept writes") as caught:
                act()
            assert "target_session_attrs=read-write" in str(caught.value)
        assert run.status() == "queued", "reading goes on"
    assert site.client.enqueue(fine, 1, idempotency_key="k").status() == "queued"


def test_an_awaited_client_is_told_the_same(site, services):
    async def enqueue():
        async with AsyncFlujoClient(site.settings) as client:
            with read_only(services), pytest.raises(ServiceUnreachable, match="does not accept writes"):
                await client.enqueue(fine, 1)
            return await client.enqueue(fine, 1)

    assert asyncio.run(enqueue()).id


def test_the_first_call_of_a_client_is_told_who_holds_the_tables(site):
    """The check of the schema needs a table too, which `flujo migrate --roles` may hold, or somebody else."""

    async def list_runs():
        async with AsyncFlujoClient(site.settings) as client:
            await client.list_runs()

    with psycopg.connect(site.settings.database()) as monkey, FlujoClient(site.settings) as client:
        monkey.execute("SET application_name = 'a careless person'")
        monkey.execute("LOCK TABLE flujo_schema_version")
        for act in (client.list_runs, lambda: asyncio.run(list_runs())):
            began = time.monotonic()
            with pytest.raises(ClientError, match=r"are locked by pid .*a careless person") as caught:
                act()
            assert caught.value.error_code == "LOCKED"
            assert time.monotonic() - began < 10, "no statement waits for a lock until it has no answer"


@pytest.mark.parametrize("arguments", [("enqueue", "test_away:fine", "--input", "1"), ("migrate",)])
def test_a_command_ends_with_a_message_and_the_code_for_services(site, services, arguments):
    env = site.settings.as_environment()
    with read_only(services):
        ended = CliRunner().invoke(cli, arguments, env=env)
    assert (ended.exit_code, "does not accept writes" in ended.stderr, "Traceback" in ended.stderr) == (69, True, False)


def test_doctor_says_that_postgres_is_read_only_and_not_that_workers_are_missing(site, services):
    """Workers cannot renew their leases there."""
    env = site.settings.as_environment()
    with read_only(services):
        found = json.loads(CliRunner().invoke(cli, ["doctor", "--json"], env=env).stdout)["findings"]
    [postgres] = [each for each in found if each["thing"] == "postgres"]
    assert (postgres["level"], "does not accept writes" in postgres["what"]) == ("error", True)
    assert [each for each in found if each["thing"] == "workers"] == []


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_who_waits_for_a_result_waits_through_a_restart(site, services, mode, monkeypatch):
    waits = threading.Event()
    monkeypatch.setattr(operations, "AwaitRun", lambda *wait: waits.set() or AwaitRun(*wait))
    run = site.client.enqueue(fine, 1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(run.result, timeout=60)
        assert waits.wait(60)
        services.restart_postgres(mode)
        with psycopg.connect(site.settings.database()) as connection:
            connection.execute("UPDATE flujo_runs SET status = 'cancelled', ended_at = now() WHERE id = %s", [run.id])
        assert waiting.result(60).run_status == "cancelled"


def test_a_statement_that_met_another_is_asked_again(site, monkeypatch):
    """A deadlock undoes the client's part of it, which no one but the client asks again."""
    real, met = psycopg.Cursor.execute, []

    def deadlocked(self, query, *rest, **named):
        if "flujo_runs" in str(query) and not met:
            met.append(query)
            raise psycopg.errors.DeadlockDetected("deadlock detected")
        return real(self, query, *rest, **named)

    monkeypatch.setattr(psycopg.Cursor, "execute", deadlocked)
    assert site.client.enqueue(fine, 1).id
    assert met


def test_migrating_what_is_migrated_says_that_it_is_read_only(site, services):
    with read_only(services), pytest.raises(ServiceUnreachable, match="does not accept writes"):
        migrate(site.settings.database())
