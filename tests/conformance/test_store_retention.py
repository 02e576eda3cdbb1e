"""Retention: ended runs are deleted by age, status and pipeline, with all their data, and nothing else is."""

import re
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from test_store_background import again, end, first_of, launching
from worlds import Postgres, World, run_of

from flujo_client.contract.outcome import Event, Usage
from flujo_client.errors import RunNotFound
from flujo_client.sql_files import written
from flujo_worker.domain.budget import Amount, Reservation
from flujo_worker.domain.ended import KINDS, Position
from flujo_worker.domain.retention import RetentionRule
from flujo_worker.store.postgres.statements import HOME
from tests.support.builders import enqueued, failed, pipeline_of, succeeded

DAY_S = 86_400.0
A_WEEK = [RetentionRule("succeeded", 7 * DAY_S), RetentionRule("failed", 30 * DAY_S)]
OF_A_RUN = "scopes attempts contexts spends events reservations inputs hook_calls correction_ledger"


def ended(world, *, name="p", outcome=None, **order):
    """A run that has just ended; its id."""
    world.register_worker("w1", lease_s=1e9)
    pipeline = replace(pipeline_of("a", max_retries=0), name=name)
    new = world.record(enqueued(pipeline, context={"n": 0}, **order))
    assert world.conclude(new, outcome or succeeded(), fence=world.claim(new)) == "merged"
    return run_of(new)


def pruned(world, rules=A_WEEK, limit=100):
    return set(world.stores.retention.prune_runs(rules, limit))


def is_there(world, run):
    try:
        return world.run(run) is not None
    except RunNotFound:
        return False


def test_runs_go_when_they_are_old_enough_for_how_they_ended(world):
    good, bad = ended(world), ended(world, outcome=failed(retryable=False))
    live = run_of(world.record(enqueued()))
    world.pass_time(6 * DAY_S)
    assert pruned(world) == set()
    world.pass_time(2 * DAY_S)
    younger = ended(world)
    assert pruned(world) == {good}
    world.pass_time(30 * DAY_S)
    assert pruned(world) == {bad, younger}
    assert is_there(world, live)
    assert pruned(world) == set()


def test_a_rule_for_a_pipeline_goes_before_the_rule_for_all(world):
    audit, brief, other = ended(world, name="audit"), ended(world, name="brief"), ended(world, name="other")
    world.pass_time(DAY_S)
    rules = [*A_WEEK, RetentionRule("succeeded", None, "audit"), RetentionRule("succeeded", 3_600.0, "brief")]
    assert pruned(world, rules) == {brief}
    world.pass_time(400 * DAY_S)
    assert pruned(world, rules) == {other}
    assert is_there(world, audit)


def test_without_rules_nothing_goes(world):
    run = ended(world)
    world.pass_time(4_000 * DAY_S)
    assert pruned(world, []) == set()
    assert is_there(world, run)


def test_the_oldest_go_first_and_no_more_than_asked_for(world):
    runs = []
    for _ in range(5):
        runs.append(ended(world))
        world.pass_time(60.0)
    world.pass_time(8 * DAY_S)
    assert [pruned(world, limit=2) for _ in range(4)] == [set(runs[:2]), set(runs[2:4]), set(runs[4:]), set()]


def test_its_key_is_free_again(world):
    old = ended(world, idempotency_key="k", tenant="acme")
    world.pass_time(8 * DAY_S)
    assert pruned(world) == {old}
    again = ended(world, idempotency_key="k", tenant="acme")
    assert again != old
    assert is_there(world, again)


def launched(world):
    """A run that has ended, and the first attempt of the run in the background that it left."""
    world.register_worker("w1", lease_s=1e9)
    new = world.record(enqueued(pipeline_of("a", "mail")))
    decision = launching(new.first, fence=world.claim(new))
    assert world.commit(decision) == "merged"
    return run_of(new), first_of(world, new, decision)


def test_a_family_goes_together_when_the_youngest_of_it_is_old_enough(world):
    """Never a parent before a child run that is alive, or younger than is kept."""
    parent, task = launched(world)
    world.pass_time(60 * DAY_S)
    assert pruned(world) == set()
    assert is_there(world, parent)
    world.stores.backlog.stop(task.ticket.run, "cancelled", "enough")
    world.pass_time(6 * DAY_S)
    assert pruned(world) == set()
    world.pass_time(2 * DAY_S)
    assert pruned(world) == {parent, task.ticket.run}


def test_a_family_is_never_cut_in_two_by_the_limit(world):
    families = []
    for _ in range(3):
        parent, task = launched(world)
        end(world, task)
        families.append({parent, task.ticket.run})
        world.pass_time(60.0)
    world.pass_time(8 * DAY_S)
    gone = [pruned(world, limit=1) for _ in range(4)]
    assert gone == [*families, set()]


def test_a_summary_stays_of_each_run_if_asked_for(world):
    """What it was, when, and what it spent with its child runs; until its own time is over."""
    spent = succeeded(usage=Usage(input_tokens=30, output_tokens=12, requests=1, cost_usd=0.5))
    run = ended(world, name="brief", outcome=spent, tenant="acme")
    world.pass_time(60.0)
    parent, task = launched(world)
    end(world, task, "failed")
    world.pass_time(8 * DAY_S)
    untold = ended(world)
    assert set(world.stores.retention.prune_runs(A_WEEK, 100, is_summarized=True)) == {run, parent, task.ticket.run}
    world.pass_time(8 * DAY_S)
    assert pruned(world) == {untold}
    left = {each.id: each for each in world.read_deleted_runs()}
    assert set(left) == {run, parent, task.ticket.run}
    summary = left[run]
    assert (summary.name, summary.tenant, summary.status, summary.parent_run) == ("brief", "acme", "succeeded", None)
    assert (summary.tokens, summary.cost_usd) == (42, 0.5)
    assert summary.ended_at == min(each.ended_at for each in left.values())
    assert (left[task.ticket.run].status, left[task.ticket.run].parent_run) == ("failed", parent)

    world.stores.retention.prune_summaries(17 * DAY_S, 10)
    assert len(world.read_deleted_runs()) == 3
    world.stores.retention.prune_summaries(7 * DAY_S, 1)
    assert run not in {each.id for each in world.read_deleted_runs()}
    world.stores.retention.prune_summaries(7 * DAY_S, 10)
    assert world.read_deleted_runs() == []


def test_a_fleet_takes_one_turn(world):
    assert world.stores.retention.begin_pruning(5.0)
    assert not world.stores.retention.begin_pruning(5.0)
    world.pass_time(5.0)
    assert world.stores.retention.begin_pruning(5.0)


def test_nothing_of_it_stays(postgres):
    """Every table that has a run's rows; another run's rows stay."""
    postgres.empty()
    world = World(postgres)
    left = ended(world)
    run = ended(world, limits={"run": "r", "limits": None, "tenant": "", "tenant_limits": None})
    world.stores.records.note(run, [Event("told", {})])
    [attempt] = world.attempts(run)
    budget = Reservation(f"run:{run}", Amount(tokens=20), None, 1_000)
    reserve_as(postgres, attempt.key, run, budget)
    postgres.execute(
        f"UPDATE flujo_runs SET ended_at = now() - interval '8 days', created_at = now() - interval '9 days' WHERE id = '{run}'"
    )
    before = {table: rows_of(postgres, table, left) for table in OF_A_RUN.split()}
    assert rows_of(postgres, "reservations", run) == 1
    assert pruned(world) == {run}
    assert {table: rows_of(postgres, table, run) for table in OF_A_RUN.split()} == dict.fromkeys(OF_A_RUN.split(), 0)
    assert {table: rows_of(postgres, table, left) for table in OF_A_RUN.split()} == before
    assert world.budgets() == {}


def rows_of(postgres, table, run):
    return postgres.rows(f"SELECT count(*) AS n FROM flujo_{table} WHERE run_id = %(run)s", run=run)[0]["n"]


def reserve_as(postgres, key, run, budget):
    columns = "(key, scope, run_id, usd, tokens, held)"
    postgres.execute(
        f"INSERT INTO flujo_reservations {columns} VALUES ('{key}', '{budget.scope}', '{run}', 0, 20, false)"
    )
    postgres.execute(f"INSERT INTO flujo_budgets (scope, limit_tokens) VALUES ('{budget.scope}', 1000)")


def test_a_run_that_is_being_retried_is_left_for_the_next_time(postgres, held):
    postgres.empty()
    world = World(postgres)
    kept, other = ended(world), ended(world)
    world.pass_time(8 * DAY_S)
    held.execute("SELECT id FROM flujo_runs WHERE id = %s FOR KEY SHARE", [kept])
    assert pruned(world) == {other}
    held.commit()
    assert pruned(world) == {kept}


def test_a_fork_and_a_deletion_at_once_leave_a_whole_run_or_none(postgres, race, no_deadlock):
    postgres.empty()
    world = World(postgres)
    for _ in range(6):
        old = ended(world, outcome=failed(retryable=False))
        new = world.forked(old, "a")
        world.pass_time(31 * DAY_S)
        forked, gone = race(partial(world.fork, new), partial(pruned, world))
        assert (forked is None) <= (old in gone)
        if forked is not None:
            assert [row.status for row in world.attempts(forked)] == ["ready"]


def background_failure(world):
    """A run that succeeded, and the run in the background that it left and that failed."""
    parent, task = launched(world)
    end(world, task, "failed")
    return parent, task


def test_a_family_stays_whole_while_one_of_it_is_being_started_again(postgres, held):
    postgres.empty()
    world = World(postgres)
    parent, task = background_failure(world)
    world.pass_time(8 * DAY_S)
    held.execute("SELECT id FROM flujo_runs WHERE id = %s FOR KEY SHARE", [task.ticket.run])
    assert pruned(world) == set()
    held.commit()
    assert pruned(world) == {parent, task.ticket.run}


def test_starting_again_and_a_deletion_at_once_leave_the_whole_family_or_none(
    postgres, race, no_deadlock, database_url
):
    postgres.empty()
    world, client = World(postgres), Postgres(postgres.stores, database_url)
    for _ in range(6):
        parent, task = background_failure(world)
        world.pass_time(31 * DAY_S)
        new, gone = race(lambda: client.ask(again(task)), lambda: pruned(world))  # noqa: B023 - called at once
        left = {run for run in (parent, task.ticket.run, f"{task.ticket.run}2") if is_there(world, run)}
        assert left == (set() if gone else {parent, task.ticket.run, new})
        postgres.empty()
    client.close()


def test_many_who_delete_at_once_share_the_work(postgres, race, no_deadlock):
    postgres.empty()
    world = World(postgres)
    runs = {ended(world) for _ in range(40)}
    world.pass_time(8 * DAY_S)
    gone = [
        run
        for _ in range(10)
        for found in race(*[lambda: world.stores.retention.prune_runs(A_WEEK, 7)] * 3)
        for run in found
    ]
    assert sorted(gone) == sorted(runs)


def test_what_the_past_of_the_fleet_left_goes_after_its_time(world):
    """Workers that ended, epochs of the broker before the present one, and tenants' budgets by the day; nothing that is in use."""
    world.register_worker("old", lease_s=30.0)
    world.stores.backlog.epoch_start("first")
    world.pass_time(31 * DAY_S)
    assert world.stores.retention.prune_bookkeeping(60 * DAY_S) == 0
    world.register_worker("new")
    second = world.stores.backlog.epoch_start("second")
    assert world.stores.retention.prune_bookkeeping(30 * DAY_S) == 3
    world.pass_time(31 * DAY_S)
    assert world.stores.retention.prune_bookkeeping(30 * DAY_S) == 1
    assert world.stores.backlog.epoch_start("second") == pytest.approx(
        second - 31 * DAY_S if is_aged(world) else second
    )
    assert world.stores.retention.prune_bookkeeping(30 * DAY_S) == 0


def is_aged(world):
    """Whether time passes there by making everything older."""
    return isinstance(world.setting, Postgres)


def test_a_tenants_budget_goes_when_its_day_is_long_over(world):
    new = world.record(enqueued())
    days = ["2020-01-01", "2999-01-01"]
    reserved = [Reservation(f"tenant:acme:{day}", Amount(tokens=1), None, 1_000) for day in days]
    world.stores.attempts.claim(new.first.key, "w1", max_lost=2, to_reserve=reserved)
    world.stores.retention.prune_bookkeeping(30 * DAY_S)
    assert set(world.budgets()) == {"tenant:acme:2999-01-01"}


@pytest.mark.parametrize("status", ["cancelled", "expired"])
def test_runs_that_were_stopped_have_rules_of_their_own(world, status):
    run = run_of(world.record(enqueued()))
    world.stores.backlog.stop(run, status, "enough")
    world.pass_time(8 * DAY_S)
    assert pruned(world) == set()
    assert pruned(world, [RetentionRule(status, DAY_S)]) == {run}


def test_every_table_that_has_rows_of_a_run_is_named_where_they_are_deleted(postgres):
    """Whoever adds a table adds it there. A cascade deletes the ledger's rows; places and waits end with their run, or by their own time."""
    tables = columns_of(postgres, "c.column_name = 'run_id'")
    deleted = set(re.findall(r"DELETE FROM (flujo_\w+)", written("prune_runs", HOME)))
    assert {table for table, _ in tables} - deleted == {
        "flujo_correction_ledger",
        "flujo_gate_places",
        "flujo_waiting_runs",
    }


def test_every_column_that_may_refer_to_a_large_value_is_marked(postgres):
    """Whoever adds a column of packed values adds it there, or what it refers to would be deleted."""
    others = {("flujo_blobs", "body"), ("flujo_units", "digest"), ("flujo_units", "asked")}  # which is small
    others |= {
        ("flujo_batch_requests", "body"),
        ("flujo_batch_requests", "result"),
        ("flujo_schedules", "body"),
    }  # never stored apart
    found = columns_of(postgres, "c.data_type = 'bytea'") - others
    assert len(found) > 5
    marking = written("mark_blobs", HOME)
    names = dict(re.findall(r"JOIN (flujo_\w+) (\w)\b", marking))
    assert [each for each in sorted(found) if not re.search(rf"\b{names[each[0]]}\.{each[1]}\b", marking)] == []


def columns_of(postgres, condition):
    rows = postgres.rows(
        f"""
        SELECT c.table_name, c.column_name FROM information_schema.columns c JOIN information_schema.tables t USING (table_name)
        WHERE t.table_type = 'BASE TABLE' AND c.table_name ~ '^flujo_' AND c.table_name !~ '^flujo_events_' AND {condition}
        """
    )
    return {(row["table_name"], row["column_name"]) for row in rows}


@pytest.mark.parametrize(("exported_days", "waits_days"), [(10, 1), (8, 5), (None, 5)])
def test_what_is_not_exported_waits_for_a_while(world, exported_days, waits_days):
    """Without an exporter nothing waits; one that is away delays the deletion by a bounded time."""
    run, prune = ended(world), partial(world.stores.retention.prune_runs, A_WEEK, 100)
    world.pass_time(9 * DAY_S)
    if exported_days is not None:
        export = world.stores.exports.begin("w1", patience_s=60.0, margin_s=0.0)
        for days in (9.5, exported_days):
            sent = {kind: Position(export.now - timedelta(days=days), "") for kind in KINDS}
            world.stores.exports.advance("w1", sent, refused=0)
            assert days != 9.5 or prune(waits_s=5 * DAY_S) == []
    assert prune(waits_s=waits_days * DAY_S) == [run]
