"""Databases as the first migration left them."""

from pathlib import Path

import psycopg

SQL = Path(__file__).with_name("schema_1.sql")


def make_schema_1(url: str) -> None:
    """Create the tables of schema 1 in an empty database, as `flujo migrate` did at that time."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE TABLE flujo_schema_version (version integer PRIMARY KEY, name text NOT NULL,"
            " applied_at timestamptz NOT NULL DEFAULT now(), oldest integer NOT NULL DEFAULT 0)"
        )
        connection.execute(SQL.read_bytes())
        connection.execute("INSERT INTO flujo_schema_version (version, name) VALUES (1, 'schema')")
