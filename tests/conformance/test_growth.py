"""Frequent statements use look-ups: among a million ended runs they take as long as among none."""

import psycopg
import pytest
from grouped import grouped
from hot_statements import HOT, Asking, Explained, Explainer, act_out, ended_run, search_unused
from worlds import World

from flujo_client.config.models import Health
from flujo_client.gateway import operator_requests, requests
from flujo_client.health.facts import HealthQuery
from flujo_worker.store.postgres.statements import CLIENT, HOME, statement
from flujo_worker.store.postgres.stores import PostgresStores
from tests.support.builders import enqueued
from tests.support.ended_runs import multiply
from tests.support.services import drop_database, migrated_database

pytestmark = pytest.mark.services

ENDED = 20_000
KNOWN = {("machine", "flujo_budgets")}
"""The health check, which is made now and then, compares every budget with what is reserved from it."""
LARGE = "SELECT relname FROM pg_class WHERE relkind = 'r' AND reltuples >= %s"
EACH_STEP = {
    *("claim", "reserve", "conclude", "settle", "hold_budgets"),
    *("scope", "envelopes", "mark_sent", "aborted_among", "closed_among", "renew"),
}


@pytest.fixture(scope="module")
def grown(services):
    """A database with many ended runs: its setting, its URL, and the tables that hold them."""
    url = migrated_database(services)
    stores = PostgresStores(url).open()
    setting = Asking(stores, url)
    run = ended_run(World(setting))
    with psycopg.connect(url, autocommit=True) as connection:
        multiply(connection, run, ENDED)
        large = {name for (name,) in connection.execute(LARGE, [ENDED])}
    yield setting, url, large
    setting.close()
    stores.close()
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
        search_unused(World(setting))
    explainer.close()
    assert {each.name for each in explainer.found} >= HOT
    assert {"flujo_runs", "flujo_attempts", "flujo_scopes", "flujo_spends", "flujo_units", "flujo_budgets"} < large
    wrong = {(each.name, table) for each in explainer.found for table in each.read_whole() & large}
    assert wrong - KNOWN == set()


def test_the_health_check_looks_up_the_newest_ends_of_each_pipeline_and_status(grown):
    """The index of all ends has them too, but among them one that is rare is found last."""
    _, url, _ = grown
    explainer = Explainer(url)
    explainer.ask(operator_requests.machine(HealthQuery(limit=1), Health()))
    explainer.close()
    indexes = {node.get("Index Name") for each in explainer.found for node in each.nodes()}
    assert "flujo_runs_ended" in indexes
    assert "flujo_runs_export" not in indexes


def planned_on_empty_tables(url, name):
    """A worker plans once, perhaps before the first run."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement("connection_settings").text)
        text = statement(name, CLIENT if name == "mark_sent" else HOME).text
        [(plan,)] = connection.execute(b"EXPLAIN (GENERIC_PLAN, FORMAT JSON) " + text).fetchone()
    return Explained(name, plan)


@pytest.mark.parametrize("name", sorted(EACH_STEP))
def test_what_was_planned_when_all_tables_were_empty_looks_up_too(database_url, name):
    """No plan may read all there is, or all that is under way."""
    plan = planned_on_empty_tables(database_url, name)
    assert plan.read_whole() | plan.walked() <= {"flujo_workers"}


@pytest.mark.parametrize("name", ["release_places", "hold_gates", "waiting_runs", "admit_runs"])
def test_an_admission_looks_up_the_runs_that_it_admits(database_url, name):
    plan = planned_on_empty_tables(database_url, name)
    assert plan.read_whole() | plan.walked() == set()


@pytest.mark.parametrize("name", ["first_waiting", "leave_windows", "release_stale_places"])
def test_an_admission_reads_no_more_than_waits_or_is_asked(database_url, name):
    plan = planned_on_empty_tables(database_url, name)
    assert plan.walked() <= {"flujo_waiting_runs", "flujo_attempts"}  # the first of each queue; open questions
    assert plan.read_whole() <= {"flujo_gate_places"}


@pytest.mark.parametrize("name", ["due", "poisoned", "expire_questions", "signal_join", "missed_joins", "aborted"])
def test_a_sweep_reads_the_runs_of_what_it_finds_alone(database_url, name):
    assert not {"flujo_runs"} & planned_on_empty_tables(database_url, name).walked()


WAITED = 2_000


def test_an_old_snapshot_does_not_make_sweeps_read_all_that_has_ended_since(services, monkeypatch):
    url = migrated_database(services)
    stores = PostgresStores(url).open()
    setting = Asking(stores, url)
    world = World(setting)
    with psycopg.connect(url) as idle:
        idle.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        idle.execute("SELECT count(*) FROM flujo_runs")
        news = [enqueued() for _ in range(WAITED)]
        setting.ask(requests.record_many(news, lambda _: None, grace_s=-60.0))
        setting.execute("UPDATE flujo_attempts SET status = 'cancelled', ended_at = now()")
        last = world.record(enqueued())
        pages = []
        for _ in range(2):
            explainer = Explainer(url, settings="connection_settings", analyze=True)
            with explainer.watching(monkeypatch):
                stores.backlog.queues()
            explainer.close()
            pages.append(explainer.found[-1].plan["Plan"]["Shared Hit Blocks"])
            assert stores.backlog.begin_sweep("w1", 0.0)
    world.pass_time(2.0)
    assert [due.envelope.key for due in world.due()] == [last.first.key]
    stores.close()
    setting.close()
    drop_database(services, url)

    before, after = pages
    assert before > 10 * after


def test_what_waits_from_long_ago_is_found_after_a_sweep_has_looked(postgres):
    """Also what is committed long after its transaction began, which the look before could not see."""
    postgres.empty()
    world = World(postgres)
    old = world.record(enqueued())
    world.pass_time(3_600.0)
    assert world.stores.backlog.begin_sweep("w1", 0.0)
    assert [due.envelope.key for due in world.due()] == [old.first.key]
    late = world.record(enqueued())
    postgres.execute(f"UPDATE flujo_attempts SET available_at = now() - interval '2 h' WHERE key = '{late.first.key}'")
    postgres.execute("UPDATE flujo_sweeps SET looked_at = looked_at - interval '31 s'")
    assert world.stores.backlog.begin_sweep("w1", 0.0)
    assert [due.envelope.key for due in world.due()] == [late.first.key]
