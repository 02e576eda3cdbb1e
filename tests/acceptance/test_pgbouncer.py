"""A pooler in transaction mode (law, design §3): PgBouncer where it is installed, and everywhere one of our own, `transaction_pool.py`."""

import asyncio
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from container_checks import assert_joined_once

from flujo_client.api.client import AsyncFlujoClient, FlujoClient
from flujo_client.contract.limits import UsageLimits
from flujo_client.errors import ClientError
from tests.support.fleet import PATIENCE_S, STEADY, Site, assert_merged_once, wait_until
from tests.support.services import free_port, temporary_folder
from tests.support.transaction_pool import TransactionPool

BOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")

INSTALLED = pytest.mark.skipif(BOUNCER is None, reason="pgbouncer is not installed")

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.installation]

CONFIGURATION = """[databases]
{name} = host={host} port={port} dbname={name} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
auth_type = trust
auth_file = {folder}/users.txt
pool_mode = transaction
default_pool_size = {SERVERS}
max_client_conn = 200
logfile = {folder}/log
unix_socket_dir =
"""
SERVERS = 3
"""How many sessions a pooler has with Postgres: fewer than a worker has connections, so none keeps one of its own."""

SETTINGS = (
    "SELECT name FROM pg_settings WHERE source = 'session' AND name NOT IN ('application_name', 'client_encoding')"
)
PREPARED = "SELECT name FROM pg_prepared_statements"


class Place:
    """Where a database is, and where a pooler in front of it listens."""

    def __init__(self, url: str) -> None:
        direct = urlsplit(url)
        options, self.listen = parse_qs(direct.query), free_port()
        self.host = options.get("host", [direct.hostname])[0]
        self.port = options.get("port", [str(direct.port)])[0]
        self.name, self.user = direct.path[1:], direct.username
        self.url = f"postgresql://{self.user}@127.0.0.1:{self.listen}/{self.name}"


class Bouncer(Place):
    """A PgBouncer in front of one database."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url)
        (folder / "users.txt").write_text(f'"{self.user}" ""\n')
        self._file = folder / "pgbouncer.ini"
        where = {key: getattr(self, key) for key in ("name", "host", "port", "user", "listen")}
        self._file.write_text(CONFIGURATION.format(**where, folder=folder, SERVERS=SERVERS))
        folder.chmod(0o777)
        owner = Path(self.host).owner() if self.host.startswith("/") else Path.home().owner()
        self._account = [] if owner == Path.home().owner() else ["-u", owner]

    def start(self) -> None:
        self._process = subprocess.Popen([BOUNCER, *self._account, self._file], stderr=subprocess.DEVNULL)
        wait_until(self._listens, what="pgbouncer does not listen")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """Stop as its service manager does: every connection is cut, whatever is under way on it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(20)

    def _listens(self) -> bool:
        with socket.socket() as caller:
            return caller.connect_ex(("127.0.0.1", self.listen)) == 0


class Pooler(Place):
    """A pooler of our own in front of one database."""

    def __init__(self, url: str, _folder: Path) -> None:
        super().__init__(url)

    def start(self) -> None:
        self._pool = TransactionPool(
            self.host, int(self.port), self.user, self.name, sessions=SERVERS, listen=self.listen
        )
        self._pool.start()

    def kill(self) -> None:
        self._pool.stop()


@contextmanager
def bounced_site(pooler, services, folder, **settings):
    """A site whose client and workers reach Postgres through a pooler alone."""
    with temporary_folder() as ours, Site(services, folder, worker=STEADY, **settings) as site:
        site.bouncer = pooler(site.settings.database(), ours)
        site.bouncer.start()
        site.settings = site.settings.with_services(site.bouncer.url, site.settings.broker())
        site.client.close()
        site.client = FlujoClient(site.settings)
        try:
            yield site
        finally:
            site.dismiss()
            site.bouncer.kill()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((Bouncer, {}), id="PgBouncer", marks=INSTALLED),
        pytest.param((Bouncer, {"prepare_statements": False}), id="PgBouncer, as a setting says", marks=INSTALLED),
        pytest.param((Pooler, {}), id="a pooler of our own"),
    ],
)
def site(request, services, tmp_path_factory):
    """Nothing says that there is a pooler, or a setting does."""
    pooler, settings = request.param
    with bounced_site(pooler, services, tmp_path_factory.mktemp("site"), **settings) as site:
        yield site


def enqueue_mixed(site):
    """Give chains, fan-outs, loops, runs under limits, and questions: three of each."""
    limits = UsageLimits(total_cost_usd_limit=1.0, total_tokens_limit=100)
    return {
        "chain": [site.enqueue("lingering") for _ in range(3)],
        "fan-out": [site.client.enqueue("container_pipelines:deep", n) for n in range(3)],
        "loop": [site.client.enqueue("container_pipelines:rounds", 0, context={"goal": 20}) for _ in range(3)],
        "budget": [site.client.enqueue("budget_pipelines:three", "in", limits=limits) for _ in range(3)],
        "question": [site.client.enqueue("human_pipelines:approval", []) for _ in range(3)],
    }


def assert_ended(site, runs):
    for run in runs["question"]:
        wait_until(lambda run=run: run.status() == "paused", what=site.log)
        run.resume({"approved": True, "why": "fine"}, actor="ana")
    for run in runs["chain"]:
        assert_merged_once(site, run, ["first", "second", "third"])
    for kind, some in runs.items():
        for run in some:
            assert run.result(timeout=PATIENCE_S).run_status == "succeeded", (kind, site.log())
    for run in runs["fan-out"]:
        assert_joined_once(site, run)
    assert [run.result().output for run in runs["loop"]] == [20] * 3
    assert [run.budgets()[0].spent_tokens for run in runs["budget"]] == [30] * 3
    assert site.stuck() == []


def test_every_kind_of_run_goes_through_a_pooler_in_transaction_mode(site):
    """Law: no session locks, nothing that needs LISTEN, no prepared statement that another session has."""
    site.standing(2)
    assert_ended(site, enqueue_mixed(site))
    waiting = site.enqueue("waiting")
    site.wait_for_execution(waiting.id, "gate")
    assert waiting.cancel(timeout=PATIENCE_S)
    assert waiting.result(timeout=PATIENCE_S).run_status == "cancelled"
    assert site.stuck() == []


def test_runs_end_although_the_pooler_is_killed_and_started_again(site):
    site.standing(2)
    runs = enqueue_mixed(site)
    wait_until(lambda: all(site.executions(run.id) for run in runs["chain"]), what=site.log)
    site.bouncer.kill()
    site.bouncer.start()
    assert_ended(site, runs)


@INSTALLED
@pytest.mark.parametrize("down_s", [0.0, 8.0], ids=["restarted", "down for longer than a lease"])
def test_no_step_is_repeated_when_pgbouncer_is_stopped_in_the_midst(services, tmp_path, down_s):
    """Design §5: outcomes are held and merged later, and a worker that loses its lease with all others adopts what it still runs."""
    with temporary_folder() as ours, Site(services, tmp_path) as site:
        bouncer = Bouncer(site.settings.database(), ours)
        bouncer.start()
        try:
            site.settings = site.settings.with_services(bouncer.url, site.settings.broker())
            site.client.close()
            site.client = FlujoClient(site.settings)
            site.workers(2)
            runs = [site.client.enqueue("cut_pipelines:steps", number) for number in range(40)]
            wait_until(lambda: sum(len(site.executions(run.id)) for run in runs) > 20, what=site.log)
            bouncer.terminate()
            time.sleep(down_s)
            bouncer.start()
            for run in runs:
                assert run.result(timeout=PATIENCE_S).run_status == "succeeded"
            began = Counter((each.run, each.step) for run in runs for each in site.executions(run.id))
            assert [each for each, times in began.items() if times > 1] == []
            assert site.stuck() == []
        finally:
            site.dismiss()
            bouncer.kill()


def test_sessions_of_others_are_left_as_they_were(site):
    """What a worker set for its session would hold for whoever that session is lent to next."""
    site.standing(2)
    assert_ended(site, enqueue_mixed(site))
    others = [psycopg.connect(site.bouncer.url) for _ in range(SERVERS)]
    try:
        for other in others:  # each in a transaction, so each in another session
            assert other.execute(SETTINGS).fetchall() == []
            assert other.execute(PREPARED).fetchall() == []
    finally:
        for other in others:
            other.close()


def test_clients_wait_for_locks_no_longer_than_without_a_pooler(site):
    """Each of their transactions sets the bound, since their session is another one each time."""
    run = site.enqueue("waiting", queue="nowhere")

    async def cancel():
        async with AsyncFlujoClient(site.settings) as client:
            await (await client.get_run(run.id)).cancel(timeout=1)

    with site.connection() as other:
        other.execute("SELECT 1 FROM flujo_runs WHERE id = %s FOR UPDATE", [run.id])
        with pytest.raises(ClientError, match="are locked by pid"):
            run.cancel(timeout=1)
        with pytest.raises(ClientError, match="are locked by pid"):
            asyncio.run(cancel())
        other.rollback()
    assert run.cancel(timeout=PATIENCE_S)


def test_an_async_client_asks_often_through_a_pooler(site):
    """What it asks often enough, it would prepare."""
    site.standing(2)
    run = site.enqueue("three")
    assert run.result(timeout=PATIENCE_S).success

    async def ask():
        async with AsyncFlujoClient(site.settings) as client:
            handles = [await client.get_run(run.id) for _ in range(8)]
            return [status for _ in range(8) for status in await asyncio.gather(*(each.status() for each in handles))]

    assert asyncio.run(ask()) == ["succeeded"] * 64
