"""One file shows the whole schema, and the migrations make the same database."""

import re
import subprocess
from pathlib import Path

import psycopg
import pytest

from flujo_client.embedded.postgres import find_binaries
from flujo_worker.store.migrate import migrate, migrations
from tests.support.services import fresh_database

pytestmark = pytest.mark.services

WHOLE = Path(__file__).parents[2] / "flujo_worker/store/schema.sql"
"""The first migration is the schema until there is a second one; from then on this file is, with every change in its place."""


def dumped(url):
    """Return a dump's statements without daily partitions and the table of versions, each with its lines sorted: a migration adds columns at the end."""
    dump = subprocess.run(
        [find_binaries() / "pg_dump", "--schema-only", url], capture_output=True, check=True, encoding="utf-8"
    )
    statements = re.split(r";\n\n", re.sub(r"^(--|\\).*\n", "", dump.stdout, flags=re.MULTILINE))
    return sorted(
        sorted(line.rstrip(",") for line in each.split("\n") if line.strip())
        for each in statements
        if not re.search(r"flujo_events_\d{8}|flujo_schema_version", each)
    )


@pytest.fixture
def shown(services):
    """Create a database from the file."""
    url = fresh_database(services)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute((WHOLE.read_text("utf-8") if len(migrations()) > 1 else migrations()[0].sql).encode())
    return url


def test_the_migrations_make_the_schema_that_the_file_shows(services, shown):
    migrated = fresh_database(services)
    migrate(migrated)
    assert dumped(migrated) == dumped(shown)
    assert WHOLE.exists() == (len(migrations()) > 1)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE flujo_runs ADD COLUMN later text",
        "ALTER TABLE flujo_attempts ALTER COLUMN sends DROP DEFAULT",
        "DROP INDEX flujo_attempts_live",
        "DROP TRIGGER flujo_keep_end ON flujo_runs",
        "ALTER FUNCTION flujo_kin STRICT",
    ],
)
def test_a_difference_would_be_seen(shown, change):
    before = dumped(shown)
    with psycopg.connect(shown, autocommit=True) as connection:
        connection.execute(change)
    assert dumped(shown) != before
