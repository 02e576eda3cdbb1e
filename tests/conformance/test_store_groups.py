"""Groups: claims and merges of many attempts in one statement. Requests with an answer took effect, the others did not."""

import asyncio
import json
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from grouped import grouped
from psycopg.pq import ExecStatus
from trees import closing, fanned_out
from worlds import LEASE_S, World

from flujo_client.contract.outcome import Correction, Event
from flujo_worker import failpoints
from flujo_worker.domain.values import EndRun
from flujo_worker.ports import Claim, Committed, PlanName
from flujo_worker.store.postgres import groups as module
from flujo_worker.store.postgres.group_bind import bind_claims
from flujo_worker.store.postgres.loop_connection import LoopConnection
from flujo_worker.store.postgres.statements import statement
from tests.support.breadth import large
from tests.support.builders import SPENT, decided, enqueued, failed, following, packed, pipeline_of, succeeded
from tests.support.fleet import wait_until

pytestmark = pytest.mark.services

PIPELINE = pipeline_of("a", "b", max_retries=3)
MERGED = Committed("merged")


@pytest.fixture
def world(postgres):
    postgres.empty()
    return World(postgres)


@pytest.fixture(params=[True, False], ids=["prepared", "unprepared"])
def groups(request, database_url):
    """Groups with prepared statements, and as they go through an old PgBouncer."""
    with grouped(database_url, prepare=request.param) as opened:
        yield opened


def run_of(new):
    return new.first.ticket.run


def recorded(world, count, pipeline=PIPELINE):
    return [world.record(enqueued(pipeline, context={"n": 1})) for _ in range(count)]


def claims(groups, *keys, worker="w1", **rest):
    return groups.together(*(groups.ledger.claim(key, worker, **rest) for key in keys))


def commits(groups, *decisions):
    return groups.together(*(groups.ledger.commit(each) for each in decisions))


def running(world, count, outcome=None, **rest):
    """So many runs whose first attempt is claimed, and what follows when each comes to the outcome."""
    news = recorded(world, count, **rest)
    return news, [decided(new, outcome or succeeded("one", {"n": 2}), fence=world.claim(new)) for new in news]


def test_a_group_is_one_statement_on_a_connection_that_was_configured_once(world, groups, monkeypatch):
    answers, read = [], LoopConnection._read
    monkeypatch.setattr(LoopConnection, "_read", lambda self, each: answers.append(each) or read(self, each))
    [new] = recorded(world, 1)
    [claim] = claims(groups, new.first.key)
    assert claim.fence == 1
    found = [each.status for each in answers if each is not None]
    *bounds, statement, end = (
        found  # without a session of its own, the group's transaction sets how long it waits for locks
    )
    assert (statement, end) == (ExecStatus.TUPLES_OK, ExecStatus.PIPELINE_SYNC)
    assert len(bounds) == (0 if groups.ledger.connections[0]._prepares else 1)


def test_doubted_connections_are_made_anew(world, groups):
    """What lost a connection of the pool has probably lost these too: found out by one request after the other, each would be silent for as long."""
    connections = groups.ledger.connections
    before = {each._pgconn.backend_pid for each in connections}
    groups.ledger.doubt()
    wait_until(
        lambda: (
            all(each.is_ready for each in connections)
            and before.isdisjoint(each._pgconn.backend_pid for each in connections)
        )
    )
    [new] = recorded(world, 1)
    assert claims(groups, new.first.key) == [Claim(1)]


def test_a_request_that_is_new_is_not_doubted(groups):
    """Its connection may be a good one, and what was asked on one that is closed has to be asked again."""
    connection, answers = groups.ledger.connections[0], []

    async def doubted():
        connection.execute([("claim", bind_claims([]))], lambda *answer: answers.append(answer))
        connection._renew()

    groups.run(doubted())
    wait_until(lambda: answers)
    assert answers == [([[]], [])]


def test_a_group_claims_all_that_is_free(world, groups):
    news = recorded(world, 5)
    world.stores.backlog.mark_sent({news[0].first.key: 0.0})
    assert claims(groups, *(new.first.key for new in news)) == [Claim(1)] * 5
    assert {world.status(new) for new in news} == {"running"}
    assert {world.run(run_of(new)).status for new in news} == {"running"}
    assert {world.attempts(run_of(new))[0].worker for new in news} == {"w1"}


def test_more_than_a_group_holds_is_asked_in_several(world, groups, monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 3)
    news = recorded(world, 8)
    assert claims(groups, *(new.first.key for new in news)) == [Claim(1)] * 8


def test_heavy_merges_go_in_several_groups(world, groups, monkeypatch):
    monkeypatch.setattr(module, "HEAVIEST", 10)
    _, decisions = running(world, 4, succeeded("x" * 100))
    assert commits(groups, *decisions) == [MERGED] * 4


def test_what_does_not_fit_into_the_socket_at_once_is_sent_in_parts(world, groups):
    outputs = [random.Random(number).randbytes(100_000).hex() for number in range(8)]
    news = recorded(world, len(outputs))
    decisions = [
        decided(new, succeeded(output), fence=world.claim(new)) for new, output in zip(news, outputs, strict=True)
    ]
    assert commits(groups, *decisions) == [MERGED] * len(outputs)
    assert [world.attempts(run_of(new))[0].output for new in news] == [packed(output) for output in outputs]


def test_a_group_merges_what_each_would_merge_alone(world, groups):
    news, decisions = running(
        world, 3, replace(succeeded("one", {"n": 2}), usage=SPENT, events=(Event("told", {"x": 1}, "info"),))
    )
    assert commits(groups, *decisions) == [MERGED] * 3
    for new, decision in zip(news, decisions, strict=True):
        first, second = world.attempts(run_of(new))
        assert (first.status, first.output, first.tokens) == ("succeeded", packed("one"), 15)
        assert (second.key, second.status) == (following(decision).key, "ready")
        assert world.run(run_of(new)).context == packed({"n": 2})
        assert [event.name for event in world.events(run_of(new))].count("told") == 1
        assert world.commit(decision) == "repeated"


def test_a_group_ends_runs(world, groups):
    news, decisions = running(world, 3, succeeded("done"), pipeline=pipeline_of("a"))
    assert commits(groups, *decisions) == [MERGED] * 3
    assert {(world.run(run_of(new)).status, world.run(run_of(new)).output) for new in news} == {
        ("succeeded", packed("done"))
    }


def test_failures_are_merged_with_their_waits(world, groups):
    news, decisions = running(world, 2, failed(guidance="wrong tone"))
    assert commits(groups, *decisions) == [MERGED] * 2
    assert {world.attempts(run_of(new))[1].number for new in news} == {2}
    world.pass_time(10)
    assert {each.envelope.guidance for each in world.due()} == {"wrong tone"}


def test_branches_close_in_a_group(world, groups):
    arms = fanned_out(world, 3)
    decisions = [closing(arm, fence=world.claim(arm), lane=place) for place, arm in enumerate(arms)]
    assert commits(groups, *decisions) == [Committed("merged", must_signal=False)] * 3
    rows = world.stores.scopes.children(arms[0].ticket.run, "f")
    assert [(row.status, row.patch, row.context) for row in rows] == [
        ("succeeded", packed({"at": row.address}), None) for row in rows
    ]


def test_where_no_chord_counts_one_of_a_group_signals_the_join(world, database_url):
    with grouped(database_url, counts_chords=False) as groups:
        arms, others = fanned_out(world, 3), fanned_out(world, 2)
        decisions = [closing(arm, fence=world.claim(arm), lane=place) for place, arm in enumerate([*arms, others[0]])]
        signals = [each.must_signal for each in commits(groups, *decisions)]
    assert (sorted(signals[:3]), signals[3]) == ([False, False, True], False)


def test_what_outcomes_repaired_is_kept_with_those_that_are_merged(world, groups):
    """M-178: one statement of the group's transaction keeps it; an outcome that is left out keeps nothing."""
    repairs = [Correction("a", None, None, None, "2", "semantic", 1, (f"fix {number}",), 1.0) for number in range(4)]
    news = recorded(world, 3)
    outcomes = [
        replace(succeeded("one"), corrections=tuple(repairs[each] for each in own)) for own in ((0, 1), (2,), (3,))
    ]
    decisions = [decided(new, each, fence=world.claim(new)) for new, each in zip(news, outcomes, strict=True)]
    decisions[1] = replace(decisions[1], notice=replace(decisions[1].notice, fence=7))
    assert commits(groups, *decisions) == [MERGED, None, MERGED]
    assert commits(groups, *decisions) == [None] * 3
    kept = [[(each.fence, each.correction) for each in world.corrections(run_of(new))] for new in news]
    assert kept == [[(1, repairs[0]), (1, repairs[1])], [], [(1, repairs[3])]]


def test_a_branch_whose_lane_someone_waits_for_closes_alone(world, groups):
    arms = fanned_out(world, 3, lanes=2)
    decision = closing(arms[0], fence=world.claim(arms[0]))
    before = world.picture(arms[0].ticket.run)
    assert commits(groups, decision) == [None]
    assert world.picture(arms[0].ticket.run) == before
    assert world.stores.attempts.commit(decision).taken == arms[2].key


def test_what_is_not_free_is_not_answered_and_stays_as_it_is(world, groups):
    """Each neighbour is left out for its own reason, which refusal.sql would report."""
    free, taken, cancelled, late, other = recorded(world, 5)
    world.claim(taken)
    world.request_cancel(run_of(cancelled))
    lost = world.record(enqueued(PIPELINE))
    for worker in ("d1", "d2"):
        world.register_worker(worker)
        world.claim(lost, worker)
        world.stores.leases.deregister_worker(worker)
        world.due()
    expired = world.record(enqueued(PIPELINE, deadline=world.now() + 5))
    world.pass_time(6)
    world.register_worker("w1")
    rest = (taken, cancelled, lost, expired, other)
    before = [world.picture(run_of(new)) for new in rest]
    plan = PlanName("other:pipeline", other.plan.fingerprint)
    asked = [groups.ledger.claim(new.first.key, "w1") for new in (free, taken, cancelled, lost, expired)]
    asked += [groups.ledger.claim(other.first.key, "w1", plan=plan), groups.ledger.claim(late.first.key, "nobody")]
    assert groups.together(*asked, groups.ledger.claim("run_none::a:1", "w1")) == [Claim(1), *[None] * 7]
    assert [world.picture(run_of(new)) for new in rest] == before


def test_a_stale_outcome_is_left_out_and_its_neighbours_are_merged(world, groups):
    news, decisions = running(world, 3)
    world.pass_time(LEASE_S + 1)
    world.register_worker("w2")
    world.claim(news[1], "w2")
    before = world.picture(run_of(news[1]))
    assert commits(groups, *decisions) == [MERGED, None, MERGED]
    assert world.picture(run_of(news[1])) == before
    assert world.commit(decisions[1]) == "stale"


@pytest.mark.parametrize("how", ["cancelled", "moved", "closed"])
def test_nothing_of_a_merge_that_is_not_whole_is_kept(world, groups, postgres, how):
    news, decisions = running(world, 3)
    run = run_of(news[1])
    if how == "cancelled":
        world.request_cancel(run)
    else:
        change = "version = version + 1" if how == "moved" else "status = 'cancelled'"
        postgres.execute(f"UPDATE flujo_scopes SET {change} WHERE run_id = '{run}'")
    before, told = world.picture(run), world.events(run)
    assert commits(groups, *decisions) == [MERGED, None, MERGED]
    assert (world.picture(run), world.events(run)) == (before, told)


def test_two_that_ask_for_one_attempt_get_one_answer(world, groups):
    [new] = recorded(world, 1)
    assert claims(groups, new.first.key, new.first.key) == [Claim(1), None]
    decision = decided(new, succeeded("one"))
    assert commits(groups, decision, decision) == [MERGED, None]


def test_a_merge_beside_the_end_of_its_run_goes_alone(world, groups):
    """Nothing follows a terminal status: a run that ends takes no other merge in the same statement."""
    arms = fanned_out(world, 2)
    ending, other = (closing(arm, fence=world.claim(arm), lane=place) for place, arm in enumerate(arms))
    ending = replace(ending, end=EndRun("failed", "error"))
    assert commits(groups, ending, other) == [Committed("merged", must_signal=False), None]
    assert world.run(arms[0].ticket.run).status == "failed"


@pytest.mark.parametrize("table", ["attempts", "scopes", "runs"])
def test_a_row_that_someone_holds_delays_none_of_its_neighbours(world, groups, held, table):
    news, decisions = running(world, 3)
    key = "id" if table == "runs" else "run_id"
    held.execute(f"SELECT 1 FROM flujo_{table} WHERE {key} = %s FOR UPDATE", [run_of(news[1])])
    assert commits(groups, *decisions) == [MERGED, None, MERGED]
    held.commit()
    assert commits(groups, decisions[1]) == [MERGED]


@pytest.mark.parametrize("table", ["attempts", "runs"])
def test_a_claim_that_would_wait_is_left_out(world, groups, held, table):
    news = recorded(world, 3)
    key = "id" if table == "runs" else "run_id"
    held.execute(f"SELECT 1 FROM flujo_{table} WHERE {key} = %s FOR UPDATE", [run_of(news[1])])
    assert claims(groups, *(new.first.key for new in news)) == [Claim(1), None, Claim(1)]
    held.commit()
    assert claims(groups, news[1].first.key) == [Claim(1)]


def test_a_claim_that_was_left_out_is_asked_for_in_a_later_group(world, groups, held):
    """A row that is being marked as sent is free a moment later; that takes no thread and no statement of its own."""
    first, second = (new.first.key for new in recorded(world, 2))
    held.execute("SELECT 1 FROM flujo_attempts WHERE key = %s FOR UPDATE", [first])

    async def ask():
        left_out = asyncio.ensure_future(groups.ledger.claim(first, "w1"))
        neighbour = await groups.ledger.claim(second, "w1")
        held.commit()
        return neighbour, await left_out

    assert groups.run(ask()) == (Claim(1), Claim(1))


def test_groups_against_cancels_never_wait_in_a_circle(world, groups, race, no_deadlock):
    """Cancel wins, for each run by itself; and whoever is not answered is told alone."""
    seen = set()
    for _ in range(6):
        news, decisions = running(world, 6)
        stops = [
            lambda new=new: world.stores.backlog.stop(run_of(new), "cancelled", "enough") for new in reversed(news)
        ]
        answers, *stopped = race(lambda decisions=decisions: commits(groups, *decisions), *stops)
        assert all(stopped)
        for new, answer, decision in zip(news, answers, decisions, strict=True):
            verdict = answer.verdict if answer else world.commit(decision)
            seen.add(verdict)
            assert world.attempts(run_of(new))[0].status == {"merged": "succeeded", "stopped": "cancelled"}[verdict]
    assert seen == {"merged", "stopped"}


@pytest.mark.parametrize("poison", ["run_\x00::a:1", "run_\ud800::a:1"], ids=["for postgres", "for us"])
def test_a_value_that_cannot_be_asked_for_costs_its_neighbours_no_answer(world, groups, poison):
    news = recorded(world, 7)
    sick, well = PlanName("sick:pipeline", "f"), PlanName("shapes:pipeline", news[0].plan.fingerprint)
    asked = [groups.ledger.claim(new.first.key, "w1", plan=well) for new in news]
    answers = groups.together(*asked[:4], groups.ledger.claim(poison, "w1", plan=sick), *asked[4:])
    assert answers == [*[Claim(1)] * 4, None, *[Claim(1)] * 3]


def test_the_pipeline_of_a_poisonous_value_goes_without_groups_for_a_while(world, groups, monkeypatch):
    [new, later] = recorded(world, 2)
    plan = PlanName("shapes:pipeline", new.plan.fingerprint)
    assert claims(groups, "run_\x00::a:1", plan=plan) == [None]
    assert claims(groups, new.first.key, plan=plan) == [None]
    assert claims(groups, later.first.key, plan=None) == [Claim(1)], "others go on"
    monkeypatch.setattr(module, "SUSPECT_S", 0.0)
    monkeypatch.setattr(groups.ledger._claims, "_suspects", {})
    assert claims(groups, new.first.key, plan=plan) == [Claim(1)]


def test_who_is_cancelled_takes_no_one_with_it(world, groups):
    news = recorded(world, 3)

    async def ask():
        asked = [asyncio.ensure_future(groups.ledger.claim(new.first.key, "w1")) for new in news]
        await asyncio.sleep(0)
        asked[1].cancel()
        return await asyncio.gather(*asked, return_exceptions=True)

    first, second, third = groups.run(ask())
    assert (first, third) == (Claim(1), Claim(1))
    assert isinstance(second, asyncio.CancelledError)
    assert world.status(news[1]) == "ready"


def test_a_connection_that_is_lost_leaves_all_unanswered_and_is_made_again(
    world, groups, postgres, database_url, monkeypatch
):
    """The statement waits at a table that someone holds, so it is under way when its backend ends."""
    news, decisions = running(world, 3)
    connect, is_free = LoopConnection._connect, threading.Event()

    async def connect_when_free(connection):
        await asyncio.to_thread(is_free.wait)
        await connect(connection)

    monkeypatch.setattr(LoopConnection, "_connect", connect_when_free)
    with psycopg.connect(database_url) as holder, ThreadPoolExecutor(1) as threads:
        holder.execute("LOCK TABLE flujo_events IN ACCESS EXCLUSIVE MODE")
        answers = threads.submit(commits, groups, *decisions)
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        wait_until(lambda: postgres.rows(end))
        try:
            assert answers.result(60) == [None] * 3
            assert commits(groups, decisions[0]) == [None], "nobody waits for a connection"
        finally:
            holder.rollback()
            is_free.set()

    groups.wait_until_ready()
    assert {world.status(new) for new in news} == {"running"}
    assert commits(groups, *decisions) == [MERGED] * 3


def test_without_a_server_nothing_is_answered(world):
    async def ask():
        ledger = module.GroupedLedger("postgresql://127.0.0.1:1/none")
        await ledger.open()
        answer = await ledger.claim("run_none::a:1", "w1")
        await ledger.close()
        return answer, ledger.is_ready

    assert asyncio.run(ask()) == (None, False)


@pytest.mark.parametrize(("place", "status"), [("before_commit", "running"), ("answer_lost", "succeeded")])
def test_failpoints_are_hit_once_for_a_group(world, groups, tmp_path, place, status):
    news, decisions = running(world, 2)
    failpoints.arm(f"{place}:lose:{tmp_path / place}")
    try:
        assert commits(groups, *decisions) == [None, None]
    finally:
        failpoints.arm("")
    assert {world.status(new) for new in news} == {status}
    assert {world.commit(each) for each in decisions} == {"merged" if status == "running" else "repeated"}


KEYS = {
    "flujo_attempts": {"key"},
    "flujo_scopes": {"run_id", "address"},
    "flujo_runs": {"id"},
    "flujo_workers": {"id"},
    "flujo_budgets": {"scope"},
    "flujo_reservations": {"key"},
    "flujo_blobs": {"digest"},
}
ALSO = {"flujo_scopes": {"run_id", "parent"}, "flujo_reservations": {"run_id"}}
"""Siblings, and what a run holds."""
READ = {
    "claim": {"flujo_attempts", "flujo_scopes", "flujo_runs", "flujo_workers"},
    "conclude_many": {"flujo_attempts", "flujo_scopes", "flujo_runs", "flujo_workers", "flujo_blobs"},
    "record_corrections": {"flujo_attempts"},
    "hold_budgets": {"flujo_reservations", "flujo_budgets"},
    "reserve": {"flujo_attempts", "flujo_reservations", "flujo_budgets"},
    "settle": {"flujo_attempts", "flujo_reservations", "flujo_budgets"},
}


@pytest.mark.parametrize("rows", [0, large(1), large(3), 20_000])
def test_every_row_is_looked_up_by_its_key(world, postgres, database_url, rows):
    """In a generic plan, whatever the planner knows of the tables: made for nearly empty ones, it must serve large ones too."""
    fill(postgres, rows)
    with psycopg.connect(database_url) as connection:
        connection.execute(statement("group_settings").text)
        plans = {
            name: connection.pgconn.exec_(b"EXPLAIN (GENERIC_PLAN, FORMAT JSON) " + statement(name).text).get_value(
                0, 0
            )
            for name in READ
        }
    for name, plan in plans.items():
        found = [(table, looked_up(node)) for table, node in reads(json.loads(plan)[0]["Plan"])]
        assert {table for table, _ in found} == READ[name], name
        scans = [(name, table, by) for table, by in found if not is_by_key(table, by)]
        assert scans == []


def is_by_key(table, columns):
    return columns >= KEYS[table] or columns >= ALSO.get(table, KEYS[table])


def fill(postgres, rows):
    """So many running runs, of which the planner knows; of none it knows nothing."""
    if not rows:
        return
    made = f"(SELECT 'run_' || i AS run, i FROM generate_series(1, {rows}) i) m"
    plan = "INSERT INTO flujo_pipelines (fingerprint, reference, name, version, plan) VALUES ('f', 'r', 'n', '1', '{}')"
    run = "INSERT INTO flujo_runs (id, fingerprint, reference, name, status, input, queue, digest)"
    attempt = "INSERT INTO flujo_attempts (key, run_id, address, step, number, queue, status)"
    postgres.execute(
        f"{plan}; {run} SELECT run, 'f', 'r', 'n', 'running', '', 'q', '' FROM {made};"
        f" INSERT INTO flujo_scopes (run_id, address, output) SELECT run, '', '' FROM {made};"
        f" {attempt} SELECT run || '::a:1', run, '', 'a', 1, 'q', 'running' FROM {made};"
        f" INSERT INTO flujo_budgets (scope) SELECT run FROM {made};"
        f" INSERT INTO flujo_reservations (key, scope, run_id, usd, tokens) SELECT run || '::a:1', run, run, 0, 0 FROM {made};"
        " ANALYZE flujo_attempts, flujo_scopes, flujo_runs, flujo_workers, flujo_budgets, flujo_reservations"
    )


def reads(node):
    """The nodes of a plan that read one of our tables."""
    if "Relation Name" in node and node["Node Type"] != "ModifyTable":
        yield node["Relation Name"], node
    for below in node.get("Plans", ()):
        yield from reads(below)


def looked_up(node):
    """The columns that a scan by index is given values for."""
    return set(re.findall(r"\((?:\w+\.)?(\w+) = ", node.get("Index Cond", "")))
