"""The invariants of `flujo chaos`: none is violated where nothing failed, and each finds what is planted."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import psycopg
import pytest

from flujo_worker.celery_app.consumer.refusals import Refusals
from flujo_worker.chaos.faults import FaultDeck
from flujo_worker.chaos.invariants import PROMISES, Observed, judge, unexplained, violations, wrong_contexts
from flujo_worker.chaos.pipelines import SHAPES
from flujo_worker.errors import WireError

CHAIN = "(SELECT id FROM flujo_runs WHERE metadata ->> 'shape' = 'chain')"
MERGED = f"(SELECT key FROM flujo_attempts WHERE run_id = {CHAIN} AND step = 'step1')"
ONE_EFFECT = f"SELECT gen_random_uuid(), run_id, key, claim_id FROM flujo_chaos_effects WHERE key = {MERGED}"
EFFECT = "INSERT INTO flujo_chaos_effects (id, run_id, key, claim_id)"
EVENT = "INSERT INTO flujo_events (run_id, attempt, fence, name, data)"
SPEND = "INSERT INTO flujo_spends (key, fence, run_id, claim_id)"

PLANTED = {
    "a run that has not ended": (
        "runs_ended",
        f"UPDATE flujo_runs SET status = 'running', ended_at = NULL WHERE id = {CHAIN}",
    ),
    "a run that was lost": ("runs_ended", f"DELETE FROM flujo_runs WHERE id = {CHAIN}"),
    "an innocent that failed": ("ends_expected", f"UPDATE flujo_runs SET status = 'failed' WHERE id = {CHAIN}"),
    "a culprit that succeeded": (
        "ends_expected",
        "UPDATE flujo_runs SET status = 'succeeded' WHERE metadata ->> 'shape' = 'failing'",
    ),
    "an unwanted cancel": ("ends_expected", f"UPDATE flujo_runs SET status = 'cancelled' WHERE id = {CHAIN}"),
    "a merge with two events": (
        "merged_once",
        f"{EVENT} SELECT run_id, attempt, fence, name, data FROM flujo_events WHERE attempt = {MERGED} AND name = 'step.succeeded'",
    ),
    "a merge without an event": (
        "merged_once",
        f"DELETE FROM flujo_events WHERE attempt = {MERGED} AND name = 'step.succeeded'",
    ),
    "a merge that is missing": ("merged_once", f"DELETE FROM flujo_attempts WHERE key = {MERGED}"),
    "a merge without its effect": ("merges_have_effects", f"DELETE FROM flujo_chaos_effects WHERE key = {MERGED}"),
    "a merge with an effect of another claim": (
        "merges_have_effects",
        f"UPDATE flujo_chaos_effects SET claim_id = gen_random_uuid() WHERE key = {MERGED}",
    ),
    "a claim that acted twice": ("effects_explained", f"{EFFECT} {ONE_EFFECT}"),
    "an effect of a claim that has not ended": (
        "effects_explained",
        f"UPDATE flujo_attempts SET status = 'running', ended_at = NULL WHERE key = {MERGED}",
    ),
    "an effect of no attempt": (
        "effects_explained",
        f"UPDATE flujo_chaos_effects SET key = 'other' WHERE key = {MERGED}",
    ),
    "a spend of another amount": ("spends_once", f"UPDATE flujo_spends SET cost_usd = 1 WHERE key = {MERGED}"),
    "a merge without a spend": ("spends_once", f"DELETE FROM flujo_spends WHERE key = {MERGED}"),
    "a second spend of a claim": (
        "spends_once",
        f"{SPEND} SELECT key, fence, run_id, gen_random_uuid() FROM flujo_spends WHERE key = {MERGED}",
    ),
    "a budget with too much money": (
        "budgets_settled",
        "UPDATE flujo_budgets SET settled_usd = settled_usd + 0.01 WHERE limit_tokens > 0",
    ),
    "a budget with too few tokens": ("budgets_settled", "UPDATE flujo_budgets SET settled_tokens = settled_tokens - 1"),
    "a reservation that is held": ("nothing_reserved", "UPDATE flujo_reservations SET held = true"),
    "a budget with something reserved": ("nothing_reserved", "UPDATE flujo_budgets SET reserved_tokens = 1"),
    "a place that is held": (
        "nothing_reserved",
        f"INSERT INTO flujo_gate_places (gate, run_id) SELECT 'gate', {CHAIN}",
    ),
    "a run that waits": (
        "nothing_reserved",
        f"INSERT INTO flujo_waiting_runs (run_id, key, gate, flow, priority) SELECT {CHAIN}, 'key', 'gate', '', 0",
    ),
    "a scope that is open": (
        "scopes_closed",
        f"UPDATE flujo_scopes SET status = 'open', closed_at = NULL WHERE run_id = {CHAIN}",
    ),
    "an attempt that has not ended": (
        "attempts_ended",
        f"UPDATE flujo_attempts SET status = 'running', ended_at = NULL WHERE key = {MERGED}",
    ),
    "a merge after a cancel": ("cancels_hold", "UPDATE flujo_chaos_cancels SET merges = merges - 1"),
}


def plant(site, statement):
    with psycopg.connect(site.settings.database(), autocommit=True) as connection:
        assert connection.execute(statement).rowcount > 0


def test_nothing_is_found_where_nothing_failed(calm, copy):
    verdicts = judge(copy, calm.traffic.acknowledged, Observed())
    assert [(each.name, each.violations) for each in verdicts if each.violations] == []
    [totals] = copy.rows("totals")
    assert (totals["runs"], totals["cancelled"]) == (len(SHAPES) + 1, 1)


@pytest.mark.parametrize(("name", "statement"), PLANTED.values(), ids=PLANTED)
def test_what_is_planted_is_found(calm, copy, name, statement):
    plant(copy, statement)
    assert violations(copy, name, calm.traffic.acknowledged)


def test_a_context_that_is_not_made_of_its_merges_is_found(copy):
    other = "SELECT context FROM flujo_scopes o JOIN flujo_runs r ON r.id = o.run_id WHERE o.address = '' AND r.metadata ->> 'shape' = 'retry'"
    plant(copy, f"UPDATE flujo_scopes SET context = ({other}) WHERE address = '' AND run_id = {CHAIN}")
    [wrong] = wrong_contexts(copy)
    assert "(chain)" in wrong
    assert found(copy, Observed()) == {"contexts_folded": 1}


def test_an_effect_that_a_failover_has_lost_leaves_its_merge_in_the_context(copy):
    plant(copy, f"DELETE FROM flujo_chaos_effects WHERE key = {MERGED}")
    copy.lost_before = copy.now()
    assert found(copy, Observed()) == {}


def found(site, observed):
    return {each.name: len(each.violations) for each in judge(site, (), observed) if each.violations}


def test_a_message_that_a_worker_refused_is_found(calm, copy):
    faults = FaultDeck(calm.site, calm.traffic, 1)
    Refusals(lambda: copy.settings).record(
        WireError("its signature is wrong", reason="undecodable"), b"{}", queue="any"
    )
    faults.end()
    assert found(copy, faults.observed) == {"no_dead_letters": 1}


def test_a_deadlock_is_found(services, calm, copy, monkeypatch):
    """Two transactions hold one run each, and ask for the other's."""
    monkeypatch.setattr(calm.site, "services", SimpleNamespace(directory=services.directory))
    both_hold = threading.Barrier(2)

    def hold(*runs):
        with psycopg.connect(copy.settings.database()) as connection:
            for at, run in enumerate(runs):
                connection.execute("SELECT 1 FROM flujo_runs WHERE id = %s FOR UPDATE", [run])
                if not at:
                    both_hold.wait(timeout=30)

    def hold_or_be_broken(*runs):
        with suppress(psycopg.errors.DeadlockDetected):
            hold(*runs)

    first, second, *_ = sorted(calm.traffic.acknowledged)
    with ThreadPoolExecutor(2) as together:
        for order in ((first, second), (second, first)):
            together.submit(hold_or_be_broken, *order)
    faults = FaultDeck(calm.site, calm.traffic, 1)
    faults.end()
    assert found(copy, Observed(deadlocks=faults.observed.deadlocks)).keys() == {"no_deadlocks"}


def test_every_invariant_has_a_test_here_that_violates_it(copy):
    planted = {name for name, _ in PLANTED.values()}
    assert planted == PROMISES.keys()
    assert {each.name for each in judge(copy, (), Observed())} - planted == {
        "contexts_folded",
        "no_dead_letters",
        "no_deadlocks",
    }


@pytest.mark.parametrize(
    ("observed", "count"),
    [
        (Observed(), 0),
        (Observed(Counter({"malformed": 9}), junk=6), 0),
        (Observed(Counter({"malformed": 1})), 1),
        (Observed(Counter({"undecodable": 1}), junk=6), 1),
    ],
)
def test_refused_messages_are_explained_by_junk_alone(observed, count):
    assert len(unexplained(observed)) == count
