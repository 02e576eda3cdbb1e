"""What is done all the time looks up what it needs: it takes as long among a million ended runs as among none."""

from __future__ import annotations

import psycopg
import pytest
from ended_runs import multiply
from grouped import grouped
from hot_statements import HOT, Asking, Explained, Explainer, act_out, ended_run
from services import drop_database, migrated_database
from worlds import World

from flujo_worker.store.postgres.statements import CLIENT, HOME, statement
from flujo_worker.store.postgres.store import PostgresStore

pytestmark = pytest.mark.services

ENDED = 20_000
KNOWN = {("machine", "flujo_budgets")}
"""The health check, which is made now and then, compares every budget with what is reserved from it."""
LARGE = "SELECT relname FROM pg_class WHERE relkind = 'r' AND reltuples >= %s"
EACH_STEP = [
    "claim",
    "claim_limited",
    "hold_claim",
    "conclude",
    "settle",
    "hold_budgets",
    "scope",
    "envelopes",
    "mark_sent",
    "aborted_among",
    "renew",
]


@pytest.fixture(scope="module")
def grown(services):
    """A database with many ended runs: its setting, its URL, and the tables that hold them."""
    url = migrated_database(services)
    store = PostgresStore(url).open()
    setting = Asking(store, url)
    run = ended_run(World(setting))
    with psycopg.connect(url, autocommit=True) as connection:
        multiply(connection, run, ENDED)
        large = {name for (name,) in connection.execute(LARGE, [ENDED])}
    yield setting, url, large
    setting.close()
    store.close()
    drop_database(services, url)


@pytest.mark.parametrize(
    "settings", [None, "connection_settings"], ids=["as Postgres plans", "as workers have it planned"]
)
def test_nothing_reads_a_table_of_ended_runs_as_a_whole(grown, monkeypatch, settings):
    setting, url, large = grown
    explainer = Explainer(url, settings=settings)
    monkeypatch.setattr(setting, "explain", explainer.ask)
    with grouped(url) as groups, explainer.watching(monkeypatch):
        act_out(World(setting), groups)
    explainer.close()

    assert {each.name for each in explainer.found} >= HOT
    assert {"flujo_runs", "flujo_attempts", "flujo_scopes", "flujo_spends", "flujo_budgets"} < large
    wrong = {(each.name, table) for each in explainer.found for table in each.read_whole() & large}
    assert wrong - KNOWN == set()


@pytest.mark.parametrize("name", EACH_STEP)
def test_what_was_planned_when_all_tables_were_empty_looks_up_too(database_url, name):
    """A worker plans once, perhaps before the first run: no plan may read all there is, or all that is under way."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(statement("connection_settings").text)
        [(plan,)] = connection.execute(
            b"EXPLAIN (GENERIC_PLAN, FORMAT JSON) " + statement(name, CLIENT if name == "mark_sent" else HOME).text
        ).fetchone()

    assert Explained(name, plan).read_whole() | Explained(name, plan).walked() <= {"flujo_workers"}
