"""`world`: one suite, every store. `race` and `no_deadlock`: for what needs real concurrency, on Postgres alone."""

from __future__ import annotations

import logging
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from worlds import Memory, Postgres, World, deadlocks

from flujo_worker.store.postgres import PostgresStore

STORE_LOG = "flujo_worker.store.patient"


@pytest.fixture(scope="module")
def database_url(migrated_url):
    return migrated_url


@pytest.fixture(scope="module")
def postgres(database_url):
    """A migrated database with its store, for this module."""
    store = PostgresStore(database_url).open()
    setting = Postgres(store, database_url)
    yield setting
    setting.close()
    store.close()


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.services)])
def world(request):
    """A store with nothing in it but the live worker `w1`."""
    if request.param == "memory":
        return World(Memory())
    setting = request.getfixturevalue("postgres")
    setting.empty()
    return World(setting)


@pytest.fixture
def race():
    """Run acts at the same instant, again and again; give their answers in order.

    They start at one barrier, with small seeded delays, so that over the rounds every order comes up.
    """
    draw = random.Random(7)
    with ThreadPoolExecutor(8) as threads:

        def run(*acts):
            barrier = threading.Barrier(len(acts))

            def start(act, delay):
                barrier.wait()
                time.sleep(delay)
                return act()

            started = [threads.submit(start, act, draw.choice((0, 0, draw.random() / 500))) for act in acts]
            return [each.result(timeout=30) for each in started]

        yield run


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
