"""Encrypt stored values with the first of `value_keys` (ADR 48): those from before there were keys, and those of earlier keys.

It reads all values block by block and changes each row separately, so it may run under workers, and be interrupted and repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from flujo_client.serial import renewed
from flujo_client.transport.postgres import options, unreachable
from flujo_worker.errors import StoreError
from flujo_worker.store.postgres.statements import Connection, execute, statement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BLOCKS: Final = 64
"""The number of blocks of a table that are read at once: half a megabyte, plus the rows' large values."""
_READ: Final = sql.SQL(
    "SELECT ctid::text AS place, {key} AS key, {column} AS value FROM {table}"
    " WHERE ctid >= $1::text::tid AND ctid < $2::text::tid AND {column} IS NOT NULL AND substr({column}, 1, 1) <> '#'"
)
_WRITE: Final = sql.SQL("UPDATE {table} SET {column} = $1 WHERE ctid = $2::text::tid AND {column} = $3")


def reencrypt(url: str) -> Iterator[int]:
    """Encrypt all values with the first key of this process; yield how many were changed, some blocks at a time.

    Rows that workers move meanwhile are found by another pass; the last one changes nothing. Raises SerializationError: a value is damaged,
    or its key is missing here.
    """
    with psycopg.connect(
        url, **options(url), autocommit=True, row_factory=dict_row, cursor_factory=psycopg.RawCursor
    ) as connection:
        is_done = False
        while not is_done:
            is_done = True
            for changed in _pass(connection):
                is_done = is_done and not changed
                yield changed


def _pass(connection: Connection) -> Iterator[int]:
    for row in execute(connection, "value_columns", {}).fetchall():
        key = sql.Identifier("digest") if row["table_name"] == "flujo_blobs" else sql.Literal("")
        names = {"table": sql.Identifier(row["table_name"]), "column": sql.Identifier(row["column_name"]), "key": key}
        for block in range(0, row["blocks"] + 1, _BLOCKS):
            with connection.transaction():
                yield _renew(connection, names, block)


def _renew(connection: Connection, names: Mapping[str, sql.Composable], block: int) -> int:
    """Renew the values of some blocks; return how many were changed."""
    limits = [f"({block},0)", f"({block + _BLOCKS},0)"]
    changed = 0
    for row in connection.execute(_READ.format(**names), limits, binary=True).fetchall():
        body = renewed(row["key"], row["value"])
        if body != row["value"]:
            changed += connection.execute(_WRITE.format(**names), [body, row["place"], row["value"]]).rowcount
    return changed


def clients_key_marks(url: str) -> frozenset[str]:
    """Return the marks that the clients of the latest runs have recorded. Raises StoreError."""
    try:
        with psycopg.connect(url, **options(url), autocommit=True) as connection:
            return frozenset(str(mark) for (mark,) in connection.execute(statement("key_marks").text))
    except psycopg.Error as error:
        raise StoreError(f"the marks of keys were not read: {unreachable(url, error).message}", cause=error) from error
