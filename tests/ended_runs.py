"""Ended runs in any number, made in Postgres of the rows of one that really ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, LiteralString, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

APART_MS: Final = 60_000
"""How long before the next one each of them ran."""
AT_ONCE: Final = 50_000
_OF_RUN: Final = {
    "flujo_runs": "id = %(run)s",
    "flujo_budgets": "scope = 'run:' || %(run)s",
    **dict.fromkeys(
        [f"flujo_{name}" for name in ("scopes", "attempts", "contexts", "spends", "events", "reservations")],
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
    """Copy an ended run so often, each copy under an id of its own and a minute older than the next one."""
    for table, condition in _OF_RUN.items():
        columns = connection.execute(_COLUMNS, [table]).fetchall()
        names, values = ", ".join(name for name, _ in columns), ", ".join(_value(*column) for column in columns)
        sql = f"""
            WITH original AS MATERIALIZED (SELECT * FROM {table} WHERE {condition})
            INSERT INTO {table} ({names}) SELECT {values} FROM {_FROM}
        """
        for first, last in _parts(times):
            given = {"run": run, "first": first, "last": last, "began": int(run[4:16], 16), "apart": APART_MS}
            connection.execute(cast("LiteralString", sql), given)
    connection.execute("VACUUM (ANALYZE)")


def _value(column: str, kind: str) -> str:
    if kind == "text":
        return f"replace(o.{column}, %(run)s, copy.id)"
    return f"o.{column} - n * interval '{APART_MS} ms'" if kind.startswith("timestamp") else f"o.{column}"


def _parts(times: int) -> Iterator[tuple[int, int]]:
    """The oldest first, as they would have been written."""
    for last in range(times, 0, -AT_ONCE):
        yield max(1, last - AT_ONCE + 1), last
