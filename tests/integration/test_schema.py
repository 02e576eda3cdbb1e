"""One file is the whole schema, and the migrations make the same of an older database."""

import re
import subprocess

import psycopg
import pytest

from flujo_client.embedded.postgres import find_binaries
from flujo_worker.store.migrate import migrate
from tests.support.old_schema import make_schema_1
from tests.support.services import fresh_database

pytestmark = pytest.mark.services


def dumped(url):
    """Return a dump's statements without daily partitions and the table of versions, each with its lines sorted: a migration adds columns at the end."""
    dump = subprocess.run(
        [find_binaries() / "pg_dump", "--schema-only", url], capture_output=True, check=True, encoding="utf-8"
    )
    statements = re.split(r";\n\n", re.sub(r"^(--|\\).*\n", "", dump.stdout, flags=re.MULTILINE))
    return sorted(
        sorted(line.rstrip(",;") for line in each.split("\n") if line.strip())
        for each in statements
        if not re.search(r"flujo_events_\d{8}|flujo_schema_version", each)
    )


@pytest.fixture
def shown(services):
    """Create a new database, from the file."""
    url = fresh_database(services)
    migrate(url)
    return url


def test_the_migrations_make_the_schema_that_the_file_shows(services, shown):
    migrated = fresh_database(services)
    make_schema_1(migrated)
    assert dumped(migrated) != dumped(shown)
    migrate(migrated)
    assert dumped(migrated) == dumped(shown)


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
