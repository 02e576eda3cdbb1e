"""The pool of the store while Postgres refuses connections."""

from contextlib import closing

import psycopg
import pytest

from flujo_worker.store.postgres import pool
from flujo_worker.store.postgres.stores import PostgresStores

pytestmark = pytest.mark.services


def test_who_waits_for_a_connection_gets_one_soon_after_postgres_accepts_them(migrated_url, monkeypatch, caplog):
    """The pool gives up an attempt to connect after a while; the next one must not wait until a caller's five seconds are over."""
    connect, refused = psycopg.Connection.connect, []

    def refuse(*args, **options):
        if len(refused) < 8:
            refused.append(1)
            raise psycopg.OperationalError("sorry, too many clients already")
        return connect(*args, **options)

    monkeypatch.setattr(psycopg.Connection, "connect", refuse)
    monkeypatch.setattr(pool, "RECONNECT_S", 0.05)
    with closing(PostgresStores(migrated_url).open()) as stores:
        assert stores.backlog.queues() is not None
    assert len(refused) == 8
    assert "couldn't get a connection" not in caplog.text
