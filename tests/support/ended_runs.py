"""Ended runs in any number, made in Postgres of the rows of one that really ran."""

from collections.abc import Iterator
from typing import Any, Final, LiteralString, cast

import psycopg

APART_MS: Final = 60_000
"""How long before the next one each of them ran."""
AT_ONCE: Final = 50_000
_OF_RUN: Final = {
    "flujo_runs": "id = %(run)s",
    "flujo_budgets": "scope = 'run:' || %(run)s",
    **dict.fromkeys(
        [f"flujo_{name}" for name in ("scopes", "attempts", "contexts", "spends", "units", "events", "reservations")],
        "run_id = %(run)s",
    ),
}
_COLUMNS: Final = """
    SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attidentity = '' ORDER BY attnum
"""
_FROM: Final = """
    generate_series(%(last)s::bigint, %(first)s::bigint, -1) AS n
    CROSS JOIN LATERAL (SELECT 'run_' || lpad(to_hex(%(began)s - n * %(apart)s), 12, '0') || lpad(to_hex(n), 16, '0') AS id) copy
    CROSS JOIN original o
"""


def multiply(connection: psycopg.Connection[Any], run: str, times: int) -> None:
    """Copy an ended run that often, each copy under its own id and a minute older than the next one."""
    copy(connection, run, range(1, times + 1))
    connection.execute("VACUUM (ANALYZE)")


def copy(connection: psycopg.Connection[Any], run: str, numbers: range, *, apart_ms: int = APART_MS) -> None:
    """Copy an ended run for each of these numbers, which say how many times `apart_ms` it is older; those below 0 are younger."""
    for table, condition in _OF_RUN.items():
        columns = connection.execute(_COLUMNS, [table]).fetchall()
        names, values = ", ".join(name for name, _ in columns), ", ".join(_value(*each, apart_ms) for each in columns)
        sql = f"""
            WITH original AS MATERIALIZED (SELECT * FROM {table} WHERE {condition})
            INSERT INTO {table} ({names}) SELECT {values} FROM {_FROM}
        """
        for part in _parts(numbers):
            given = {"run": run, "first": part[0], "last": part[-1], "began": int(run[4:16], 16), "apart": apart_ms}
            connection.execute(cast("LiteralString", sql), given)


def _value(column: str, kind: str, apart_ms: int) -> str:
    if kind == "text":
        return f"replace(o.{column}, %(run)s, copy.id)"
    return f"o.{column} - n * interval '{apart_ms} ms'" if kind.startswith("timestamp") else f"o.{column}"


def _parts(numbers: range) -> Iterator[range]:
    """The oldest first, as they would have been written."""
    for end in range(len(numbers), 0, -AT_ONCE):
        yield numbers[max(0, end - AT_ONCE) : end]
