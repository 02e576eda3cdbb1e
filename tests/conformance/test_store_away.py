"""The store while Postgres is away: read-only after a failover, restarted, or out of reach. Operations wait, and take effect once."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psycopg
import pytest
from grouped import grouped
from worlds import LEASE_S, MAX_LOST, World

from flujo_client.contract.outcome import Event, Usage
from flujo_client.embedded.postgres import Postgres as Server
from flujo_worker.ports import BrokerSnapshot, Claim, ClaimId
from flujo_worker.store.migrate import migrate
from flujo_worker.store.postgres.stores import PostgresStores
from tests.support.builders import decided, enqueued, member, succeeded
from tests.support.fleet import wait_until
from tests.support.services import fresh_database, passable_folder, read_only, remove_folder

pytestmark = pytest.mark.services

STORE_LOG = "flujo_worker.store.postgres.pool"


@pytest.fixture(scope="module")
def services(services_to_break):
    """Return services that no other test process uses: tests here make Postgres read-only."""
    return services_to_break


@pytest.fixture
def world(postgres):
    postgres.empty()
    return World(postgres)


@pytest.fixture
def outages_logged(caplog):
    """How often the store has said that Postgres is away."""
    with caplog.at_level(logging.WARNING, STORE_LOG):
        yield lambda: sum(record.name == STORE_LOG for record in caplog.records)


def test_an_outcome_that_meets_a_read_only_server_is_held_and_merged_once(world, services, outages_logged):
    """Law of design §5, M-013: a failover leaves the old primary read-only, and the call is not repeated for that."""
    new = world.record(enqueued())
    fence = world.claim(new)
    with ThreadPoolExecutor(1) as threads:
        with read_only(services):
            verdict = threads.submit(world.conclude, new, succeeded(), fence=fence)
            wait_until(outages_logged, 60)
            assert not verdict.done()
        assert verdict.result(60) == "merged"
    assert world.conclude(new, succeeded(), fence=fence) == "repeated"
    assert world.scope(new.first.ticket.run).version == 1


def test_every_act_that_writes_waits_for_a_server_that_takes_it(world, services, outages_logged):
    """Law of design §5: claims, merges, spends, leases, sweeps and events alike."""
    claimed, concluded, cancelled = (world.record(enqueued()) for _ in range(3))
    fences = {each.first.key: world.claim(each) for each in (concluded, cancelled)}
    world.request_cancel(cancelled.first.ticket.run)
    stores, run = world.stores, concluded.first.ticket.run
    acts = [
        lambda: stores.attempts.claim(claimed.first.key, "w1", max_lost=MAX_LOST),
        lambda: stores.attempts.commit(decided(concluded, succeeded(), fence=1)),
        lambda: stores.attempts.spend(run, ClaimId(concluded.first.key, 1), Usage(input_tokens=1)),
        lambda: stores.leases.renew("w1", LEASE_S, fences),
        lambda: stores.leases.register_worker(member("w2"), LEASE_S),
        lambda: stores.backlog.due(BrokerSnapshot(0.0, {}), judge="w1", max_lost=MAX_LOST, limit=10),
        lambda: stores.backlog.stop(cancelled.first.ticket.run, "cancelled", "asked"),
        lambda: stores.records.note(None, [Event("worker.log", {}, "info", time.time())]),
        lambda: stores.backlog.begin_sweep("w1", 0.0),
    ]
    with ThreadPoolExecutor(len(acts)) as threads:
        with read_only(services):
            done = [threads.submit(act) for act in acts]
            wait_until(lambda: outages_logged() >= len(acts), 60)
            assert not any(each.done() for each in done)
        for each in done:
            each.result(60)
    assert world.run(cancelled.first.ticket.run).status == "cancelled"
    assert world.status(concluded) == "succeeded"


def test_a_group_that_meets_a_read_only_server_answers_nothing_and_looks_for_another(world, services, database_url):
    """Who gets no answer asks alone, which waits; groups continue when a server takes them."""
    news = [world.record(enqueued()) for _ in range(3)]
    with grouped(database_url) as groups:
        claims = [lambda new=new: groups.ledger.claim(new.first.key, "w1") for new in news]
        with read_only(services):
            assert groups.together(*(claim() for claim in claims)) == [None] * 3
            assert not groups.ledger.is_ready
        wait_until(lambda: groups.run(claims[0]()), 60)
        assert groups.together(claims[1](), claims[2]()) == [Claim(1)] * 2


def test_after_a_failover_the_store_writes_to_the_new_primary(services, outages_logged):
    """With several hosts and target_session_attrs=read-write: no connection to the old primary is kept."""
    folder = passable_folder()
    second = Server(folder)
    second.start()
    try:
        urls = [fresh_database(services), second.url]
        name = urlsplit(urls[0]).path[1:]
        with psycopg.connect(second.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        urls[1] = urlsplit(second.url)._replace(path=f"/{name}").geturl()
        for url in urls:
            migrate(url)
        folders = ",".join(url.partition("host=")[2].partition("&")[0] for url in urls)
        both = f"postgresql://postgres@/{name}?host={folders}&port=5432,5432&target_session_attrs=read-write"
        stores = PostgresStores(both).open()
        stores.leases.register_worker(member("before"), LEASE_S)
        with read_only(services):
            stores.leases.register_worker(member("after"), LEASE_S)
            stores.records.note(None, [Event("worker.log", {}, "info", time.time())])
        stores.close()
        assert [workers_of(url) for url in urls] == [{"before"}, {"after"}]
        assert outages_logged()
    finally:
        second.stop()
        remove_folder(folder)


def test_what_postgres_will_never_take_is_not_tried_again(world, outages_logged):
    """A bug of ours is raised at once: no one waits forever for what cannot be."""
    with pytest.raises(psycopg.Error):
        world.stores.pool.do(
            "note",
            {
                "run": None,
                "attempt": None,
                "event_name": ["x"],
                "event_level": [None],
                "event_data": ["{"],
                "event_at": [0],
            },
        )
    assert not outages_logged()


def workers_of(url):
    with psycopg.connect(url) as connection:
        return {row[0] for row in connection.execute("SELECT id FROM flujo_workers").fetchall()}


def test_silence_is_told_so_that_other_connections_are_not_trusted_either(postgres, monkeypatch):
    monkeypatch.setattr("flujo_worker.store.postgres.pool.ANSWER_S", 0.2)
    told, pool = [], postgres.stores.pool
    monkeypatch.setattr(pool, "on_silence", lambda: told.append(1))
    pool.with_retry(lambda connection: connection.execute(b"SELECT pg_sleep(0.5)"))
    assert told, "the answer came after more than 0.2 seconds"
