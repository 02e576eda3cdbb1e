"""Waiting for results: woken by notifications over one connection, and by reading the rows where none is heard (ADR 28)."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from flujo_client import AsyncFlujoClient, FlujoClient, Pipeline, Step
from flujo_client.api import operations
from flujo_client.errors import RunNotFound, WaitTimedOut
from flujo_client.gateway import run_watch
from tests.support.fleet import PATIENCE_S, wait_until

pytestmark = pytest.mark.services

NEVER_S = 3600.0
END = "UPDATE flujo_runs SET status = 'cancelled', ended_at = now() WHERE id = ANY(%(runs)s)"
NOTIFY = "SELECT pg_notify('flujo_runs', id) FROM unnest(%(runs)s::text[]) AS id"
FORKS = """
import os, sys
from flujo_client import FlujoClient
from flujo_client.errors import WaitTimedOut

def waits():
    with FlujoClient() as client:
        try:
            client.get_run(sys.argv[1]).result(timeout=0.2)
        except WaitTimedOut:
            return True

assert waits()
child = os.fork()
assert waits()
if child:
    assert os.waitpid(child, 0)[1] == 0
print("both")
"""


def ship(data):
    return data


fine = Pipeline([Step("ship", ship)])


@pytest.fixture(autouse=True)
def nobody_waits(site, monkeypatch):
    """Each test begins and ends with no connection that waits, and no handle looks by itself before a test would give up."""
    monkeypatch.setattr(operations, "LOOK_AGAIN_S", NEVER_S)
    monkeypatch.setattr(run_watch, "LINGER_S", 0.1)
    wait_until(lambda: not watchers(site))
    yield
    wait_until(lambda: not watchers(site))


@pytest.fixture
def no_reading_again(monkeypatch):
    """Rows are read once when a wait begins, and no more."""
    monkeypatch.setattr(run_watch, "HEARD_POLL_S", NEVER_S)


def watchers(site):
    """The connections that wait for runs."""
    sql = "SELECT pid FROM pg_stat_activity WHERE application_name = 'flujo-run-watch' AND datname = current_database()"
    return [row["pid"] for row in site.rows(sql)]


def end(site, *runs, notify=True):
    with site.connection() as connection:
        connection.execute(END, {"runs": [run.id for run in runs]})
        if notify:
            connection.execute(NOTIFY, {"runs": [run.id for run in runs]})


def wait_until_reading_is_over(site):
    """The watch listens, where it can, and has read the rows since."""
    sql = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'flujo-run-watch' AND datname = current_database() AND state = 'idle' AND query LIKE '%%FROM flujo_runs%%'"
    wait_until(lambda: site.rows(sql), what="the watch has not read the rows")


def test_a_notification_wakes_who_waits(site, no_reading_again):
    run = site.client.enqueue(fine, 1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(run.result, timeout=PATIENCE_S)
        wait_until_reading_is_over(site)
        end(site, run)
        assert waiting.result(PATIENCE_S).run_status == "cancelled"


@pytest.mark.parametrize("listens", [False, True], ids=["the first wait", "another wait goes on"])
def test_a_run_that_ends_before_its_wait_begins_is_not_waited_for(site, no_reading_again, monkeypatch, listens):
    """It ends between the client's reading of it and the wait: what was read is compared with what is."""
    other, run, real = site.client.enqueue(fine, 1), site.client.enqueue(fine, 1), run_watch.RunWatch.waiting

    def late(self, run_id, *rest):
        if run_id == run.id:
            end(site, run, notify=False)
        return real(self, run_id, *rest)

    monkeypatch.setattr(run_watch.RunWatch, "waiting", late)
    with ThreadPoolExecutor(2) as threads:
        if listens:
            threads.submit(other.result, timeout=PATIENCE_S)
            wait_until_reading_is_over(site)
        assert threads.submit(run.result, timeout=PATIENCE_S).result(PATIENCE_S).run_status == "cancelled"
        end(site, other)


def test_a_notification_that_is_lost_costs_no_more_than_the_next_reading(site, monkeypatch):
    monkeypatch.setattr(run_watch, "HEARD_POLL_S", 0.3)
    run = site.client.enqueue(fine, 1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(run.result, timeout=PATIENCE_S)
        wait_until_reading_is_over(site)
        end(site, run, notify=False)
        assert waiting.result(PATIENCE_S).run_status == "cancelled"


@pytest.mark.large
def test_all_who_wait_in_a_process_share_one_connection(site, no_reading_again):
    """Of two clients, one of them awaited; each is woken for its own runs."""

    async def wait():
        async with AsyncFlujoClient(site.settings) as client:
            theirs = [await client.enqueue(fine, number) for number in range(60)]
            waits = [asyncio.create_task(run.result(timeout=PATIENCE_S)) for run in theirs]
            others = asyncio.to_thread(ours[0].result, timeout=PATIENCE_S)
            other = asyncio.create_task(others)
            await asyncio.to_thread(wait_until, lambda: len(watch()) == 61)
            await asyncio.to_thread(wait_until_reading_is_over, site)
            seen = watchers(site)
            await asyncio.to_thread(end, site, *theirs[:40])
            first = await asyncio.gather(*waits[:40])
            unended = sum(not each.done() for each in waits[40:])
            await asyncio.to_thread(end, site, *theirs[40:], *ours)
            rest = await asyncio.gather(other, *waits[40:])
            return len(seen), unended, {each.run_status for each in (*first, *rest)}

    def watch():
        return run_watch.watch_of(site.settings.database())._waits

    ours = [site.client.enqueue(fine, 1)]
    assert asyncio.run(asyncio.wait_for(wait(), PATIENCE_S)) == (1, 20, {"cancelled"})
    assert watch() == {}


def test_the_connection_is_closed_when_no_one_waits(site):
    """U-39: no connection lingers."""
    run = site.client.enqueue(fine, 1)
    for _ in range(2):
        with pytest.raises(
            WaitTimedOut, match=f"run {run.id} is still queued after 0.3 s; waits at ship: no worker is alive"
        ):
            run.result(timeout=0.3)
        wait_until(lambda: not watchers(site))


def test_a_wait_outlives_the_loss_of_its_connection(site):
    run = site.client.enqueue(fine, 1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(run.result, timeout=PATIENCE_S)
        [lost] = wait_until(lambda: watchers(site))
        site.rows("SELECT pg_terminate_backend(%(pid)s)", pid=lost)
        wait_until(lambda: watchers(site) not in ([], [lost]))
        end(site, run)
        assert waiting.result(PATIENCE_S).run_status == "cancelled"


def test_a_run_that_is_deleted_is_not_waited_for(site, monkeypatch):
    monkeypatch.setattr(run_watch, "HEARD_POLL_S", 0.1)
    run = site.client.enqueue(fine, 1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(run.result, timeout=PATIENCE_S)
        wait_until_reading_is_over(site)
        with site.connection() as connection:
            connection.execute("DELETE FROM flujo_runs WHERE id = %s", [run.id])
        with pytest.raises(RunNotFound):
            waiting.result(PATIENCE_S)


def test_a_process_that_forks_waits_in_both(site):
    run = site.client.enqueue(fine, 1)
    environment = {**os.environ, **site.settings.as_environment(), "PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run(
        [sys.executable, "-c", FORKS, run.id], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "both\nboth\n"), ended.stderr


def test_rows_are_read_often_where_a_pooler_keeps_notifications_back(site, monkeypatch):
    """PgBouncer in transaction mode, say: it answers LISTEN, and nothing is ever heard."""
    monkeypatch.setattr(run_watch, "HEARD_POLL_S", NEVER_S)
    with (
        pooler(site.settings.database()) as url,
        FlujoClient(site.settings.with_services(url, site.settings.broker())) as client,
    ):
        run = client.enqueue(fine, 1)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(run.result, timeout=PATIENCE_S)
            wait_until_reading_is_over(site)
            end(site, run)
            assert waiting.result(PATIENCE_S).run_status == "cancelled"


@contextmanager
def pooler(url):
    """A way to Postgres that does what a pooler does to who listens: another process id, and no notifications."""
    direct = urlsplit(url)
    options = parse_qs(direct.query)
    host = options.get("host", [direct.hostname])[0]
    port = int(options.get("port", [direct.port or 5432])[0])
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepting = threading.Thread(target=_accept, args=(server, host, port), daemon=True)
        accepting.start()
        through = f"postgresql://{direct.username}@127.0.0.1:{server.getsockname()[1]}{direct.path}"
        yield f"{through}?sslmode=disable&gssencmode=disable"
        server.shutdown(socket.SHUT_RDWR)
        accepting.join(20)


def _accept(server, host, port):
    with suppress(OSError):
        while True:
            client, _ = server.accept()
            is_path = host.startswith("/")
            upstream = socket.socket(socket.AF_UNIX if is_path else socket.AF_INET)
            upstream.connect(f"{host}/.s.PGSQL.{port}" if is_path else (host, port))
            for carry in (_carry_up, _carry_down):
                threading.Thread(target=carry, args=(client, upstream), daemon=True).start()


def _carry_up(client, upstream):
    with suppress(OSError):
        while data := client.recv(65_536):
            upstream.sendall(data)
        upstream.shutdown(socket.SHUT_WR)


def _carry_down(client, upstream):
    with suppress(OSError, EOFError), upstream.makefile("rb") as messages, client:
        while head := messages.read(5):
            kind, body = head[:1], messages.read(int.from_bytes(head[1:], "big") - 4)
            if kind == b"K":
                body = b"\x7f\xff\xff\xff" + body[4:]
            if kind != b"A":
                client.sendall(head + body)
