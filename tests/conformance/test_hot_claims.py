"""Indexes of attempts: a claim changes none of them, and queries for live attempts or open questions still use one."""

import psycopg
import pytest
from worlds import World, say

from flujo_worker.ports import PlanName
from flujo_worker.store.postgres.group_bind import ClaimRequest, bind_claims
from flujo_worker.store.postgres.statements import CLIENT, statement
from tests.support.builders import enqueued

pytestmark = pytest.mark.services

SEARCHES = (
    "bury",
    "due",
    "expire_questions",
    "live_join",
    "neighbours",
    "poisoned",
    "queues",
    "release_unowned",
    "stranded",
    "wind_down_attempts",
    "wind_down_run",
    "abort_attempts",
    "abort_scopes",
)
ASKED = ("approvals", "backlog", "stats")


@pytest.fixture
def world(postgres):
    postgres.empty()
    return World(postgres)


def claim_alone(held, new):
    say(held, "claim", bind_claims([ClaimRequest(new.first.key, "w1", (), None)], max_lost=2, may_judge=True))


def claim_in_a_group(held, new):
    plan = PlanName(new.first.ticket.reference, new.first.ticket.fingerprint)
    say(held, "claim", bind_claims([ClaimRequest(new.first.key, "w1", (), plan)]))


def mark_sent(held, new):
    say(held, "mark_sent", {"keys": [new.first.key], "ages": [0.0]}, home=CLIENT)


@pytest.mark.parametrize("act", [claim_alone, claim_in_a_group, mark_sent])
def test_it_changes_no_index_entry(world, held, act):
    """An update is HOT if no column that an index has, or asks for, is another one after it."""
    act(held, world.record(enqueued()))
    [counted] = held.execute(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'flujo_attempts'"
    ).fetchall()
    assert (counted["n_tup_upd"], counted["n_tup_hot_upd"]) == (1, 1)


def test_no_index_of_attempts_knows_their_status(postgres):
    defined = postgres.rows("SELECT indexdef FROM pg_indexes WHERE tablename = 'flujo_attempts'")
    assert len(defined) > 3
    assert [row["indexdef"] for row in defined if "status" in row["indexdef"]] == []


@pytest.mark.parametrize("name", [*SEARCHES, *ASKED])
def test_what_is_live_is_found_by_an_index(database_url, name):
    """There may be millions of ended attempts; no one but a query of one run may read them."""
    text = statement(name).text if name in SEARCHES else statement(name, "flujo_client.gateway").text
    with psycopg.connect(database_url) as connection:
        connection.execute("SET enable_seqscan = off")
        result = connection.pgconn.exec_(b"EXPLAIN (GENERIC_PLAN) " + text)
        plan = "\n".join(result.get_value(row, 0).decode() for row in range(result.ntuples))
    assert "flujo_attempts" in plan, result.error_message
    assert "Seq Scan on flujo_attempts" not in plan, plan


@pytest.mark.parametrize(("status", "ended"), [("succeeded", "NULL"), ("running", "now()"), ("paused", "now()")])
def test_an_attempt_has_ended_if_it_says_when(world, postgres, status, ended):
    new = world.record(enqueued())
    change = f"UPDATE flujo_attempts SET status = '{status}', ended_at = {ended} WHERE key = '{new.first.key}'"
    with pytest.raises(psycopg.errors.CheckViolation):
        postgres.execute(change)


def test_a_scope_has_one_attempt_that_has_not_ended(world, postgres):
    """Law: an attempt owns its scope; one that waits for an answer from a person does too."""
    new = world.record(enqueued())
    another = (
        "INSERT INTO flujo_attempts (key, run_id, address, step, number, queue, status, question)"
        f" SELECT key || '0', run_id, address, step, 2, queue, 'paused', '{{}}' FROM flujo_attempts WHERE key = '{new.first.key}'"
    )
    with pytest.raises(psycopg.errors.UniqueViolation):
        postgres.execute(another)
