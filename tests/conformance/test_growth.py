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


def test_a_look_for_stranded_runs_reads_what_is_live_alone(database_url):
    plan = planned_on_empty_tables(database_url, "stranded")
    walked = {node["Index Name"] for node in plan.nodes() if "Index Name" in node and "Index Cond" not in node}
    assert walked <= {"flujo_runs_live", "flujo_attempts_live", "flujo_scopes_waiting"}
    assert plan.read_whole() <= {"flujo_sweeps"}


DELAYED = """
INSERT INTO flujo_waiting_runs (run_id, key, gate, flow, priority, not_before)
SELECT 'run_' || n, 'run_' || n || '::a:1', 'start time', '', 0, now() + make_interval(hours => (n - 3)::int) FROM generate_series(1, 2000) n
"""


def test_a_sweep_reads_those_delayed_runs_alone_whose_time_has_come(postgres, database_url, monkeypatch):
    postgres.empty()
    postgres.execute(DELAYED)
    explainer = Explainer(database_url, settings="connection_settings", analyze=True)
    with explainer.watching(monkeypatch):
        postgres.stores.admission.admit()
    explainer.close()
    [plan] = [each for each in explainer.found if each.name == "first_waiting"]
    assert plan.plan["Plan"]["Actual Rows"] == 3
    assert rows_read(plan, "flujo_waiting_runs") < 12


def rows_read(plan, table):
    scans = [node for node in plan.nodes() if node.get("Relation Name") == table]
    return sum((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in scans)


def test_a_sweep_reads_those_live_runs_alone_that_are_to_be_stopped(postgres, database_url, monkeypatch):
    postgres.empty()
    world = World(postgres)
    postgres.ask(requests.record_many([enqueued() for _ in range(300)], lambda _: None, grace_s=1.0))
    stopped = [world.record(enqueued()).first.ticket.run for _ in range(2)]
    postgres.execute(f"UPDATE flujo_runs SET deadline_at = now() - interval '1 s' WHERE id = '{stopped[0]}'")
    world.request_cancel(stopped[1])
    explainer = Explainer(database_url, settings="connection_settings", analyze=True)
    with explainer.watching(monkeypatch):
        found = postgres.stores.backlog.runs_to_stop(200)
    explainer.close()
    assert found == [(stopped[0], "expired"), (stopped[1], "cancelled")]
    assert rows_read(explainer.found[-1], "flujo_runs") <= 4


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
