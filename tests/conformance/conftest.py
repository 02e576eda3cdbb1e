"""`world`: one suite, every store."""

from __future__ import annotations

import pytest
from worlds import Memory, Postgres, World

from flujo_worker.store.migrate import migrate
from flujo_worker.store.postgres import PostgresStore


@pytest.fixture(scope="module")
def postgres(database_url):
    """A migrated database with its store, for this module."""
    migrate(database_url)
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
