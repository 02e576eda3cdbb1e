"""`world`: one suite, every store. `race` and `no_deadlock`: for what needs real concurrency, on Postgres alone."""

import itertools
import logging
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from grouped import GroupedStores, grouped
from worlds import Memory, Postgres, World, deadlocks

from flujo_worker.concurrency.call_context import waiting_for_locks
from flujo_worker.store.postgres.stores import PostgresStores

IN_GROUPS = {
    "test_store_budgets",
    "test_store_claims",
    "test_store_corrections",
    "test_store_endings",
    "test_store_fan_outs",
    "test_store_leases",
    "test_store_losses",
    "test_store_lost_claims",
    "test_store_merges",
    "test_store_metadata",
    "test_store_trees",
    "test_store_values",
}
"""Modules whose claims and merges are tried in groups too."""
STORE_LOG = "flujo_worker.store.postgres.pool"


@pytest.fixture(scope="module")
def database_url(migrated_url):
    return migrated_url


@pytest.fixture(scope="module")
def postgres(database_url):
    """A migrated database with its store, for this module."""
    stores = PostgresStores(database_url).open()
    setting = Postgres(stores, database_url)
    yield setting
    setting.close()
    stores.close()


@pytest.fixture(scope="module")
def postgres_in_groups(database_url):
    """The same database with a store that asks groups first."""
    stores = GroupedStores(database_url).open()
    setting = Postgres(stores, database_url)
    yield setting
    setting.close()
    stores.close()


@pytest.fixture(scope="module")
def groups(database_url):
    """Groups of this module's database."""
    with grouped(database_url) as opened:
        yield opened


def pytest_generate_tests(metafunc):
    """Try what asks for a `world` in memory, on Postgres, and in the modules above with groups; not where module or class have their own."""
    has_own = hasattr(metafunc.module, "world") or hasattr(metafunc.cls, "world")
    if "world" in metafunc.fixturenames and not has_own:
        real = ["postgres", "postgres_in_groups"] if metafunc.module.__name__ in IN_GROUPS else ["postgres"]
        params = ["memory", *(pytest.param(name, marks=pytest.mark.services) for name in real)]
        metafunc.parametrize("world", params, indirect=True)


@pytest.fixture
def world(request):
    """A store with nothing in it but the live worker `w1`."""
    if request.param == "memory":
        return World(Memory())
    setting = request.getfixturevalue(request.param)
    setting.empty()
    return World(setting)


@pytest.fixture
def race():
    """Run acts at the same instant, again and again; give their answers in order.

    In the first races each act leads once: it has ended when the others start, so every winner is met for certain.
    Then they start at one barrier, with small seeded delays, so that over the rounds every order comes up.
    """
    draw, rounds = random.Random(7), itertools.count()
    with ThreadPoolExecutor(8) as threads:

        def run(*acts):
            leader, barrier, ended = next(rounds), threading.Barrier(len(acts)), threading.Event()

            def start(place, act, delay):
                barrier.wait()
                if leader >= len(acts) or place == leader:
                    time.sleep(delay)
                else:
                    ended.wait(30)
                try:
                    with waiting_for_locks():  # a stalled machine holds locks for longer than one statement waits
                        return act()
                finally:
                    if place == leader:
                        ended.set()

            delays = [draw.choice((0, 0, draw.random() / 500)) for _ in acts]
            started = [threads.submit(start, *each) for each in zip(itertools.count(), acts, delays)]
            return [each.result(timeout=60) for each in started]

        yield run


@pytest.fixture
def settings_of_threads(postgres, database_url):
    """A function that returns the database over a connection of each thread's own, as another process has one."""
    made, own = [], threading.local()

    def setting():
        if not hasattr(own, "setting"):
            own.setting = Postgres(postgres.stores, database_url)
            made.append(own.setting)
        return own.setting

    yield setting
    for each in made:
        each.close()


@pytest.fixture
def no_deadlock(postgres, caplog):
    """Nothing is tried again: a deadlock would be, and would say so."""
    before = deadlocks(postgres)
    with caplog.at_level(logging.WARNING, STORE_LOG):
        yield
    assert [record for record in caplog.records if record.name == STORE_LOG] == []
    assert deadlocks(postgres) == before


@pytest.fixture
def held(database_url):
    """A transaction of our own that stays open until the test commits it."""
    with psycopg.connect(database_url, row_factory=psycopg.rows.dict_row) as connection:
        yield connection
