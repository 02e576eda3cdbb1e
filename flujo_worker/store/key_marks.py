"""Read the marks of the keys that clients use. A connection for it is opened and closed: a process reads them a few times, or never."""

from __future__ import annotations

import psycopg

from flujo_client.transport.postgres import options, unreachable
from flujo_worker.errors import StoreError
from flujo_worker.store.postgres.statements import statement


def clients_key_marks(url: str) -> frozenset[str]:
    """Return the marks that the clients of the latest runs have recorded. Raises StoreError."""
    try:
        with psycopg.connect(url, **options(url), autocommit=True) as connection:
            return frozenset(str(mark) for (mark,) in connection.execute(statement("key_marks").text))
    except psycopg.Error as error:
        raise StoreError(f"the marks of keys were not read: {unreachable(url, error).message}", cause=error) from error
