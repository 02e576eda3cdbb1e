"""Commits between a group's snapshot and its locks: the locks see them, and everything afterwards respects them."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psycopg
import pytest
from grouped import grouped
from trees import FAN, closing, fanned_out, signal_join
from worlds import World

from flujo_client.contract.outcome import Fault
from flujo_client.transport import postgres as postgres_bounds
from flujo_worker.ports import Claim, Committed
from flujo_worker.store.postgres import loop_connection
from flujo_worker.store.postgres.statements import Statement, statement
from tests.support.builders import decided, enqueued, packed, pipeline_of, succeeded
from tests.support.fleet import wait_until

pytestmark = pytest.mark.services

PIPELINE = pipeline_of("a", "b", max_retries=3)
MERGED = Committed("merged")
GATE = b"WITH gate AS MATERIALIZED (SELECT pg_advisory_xact_lock(7)::text AS opened), "


@pytest.fixture
def world(postgres):
    postgres.empty()
    return World(postgres)


@pytest.fixture
def groups(database_url, monkeypatch):
    """Groups whose statements stop at a gate: they have their snapshot by then, and no lock."""

    def gated(name):
        text, names = statement(name)
        for last in (b" AS scope_metadata\n)", b" AS fingerprint\n)"):
            text = text.replace(last, last.replace(b"\n", b" FROM gate\n"))
        text = text.replace(b"WITH ", GATE, 1)
        return Statement(text, names)

    monkeypatch.setattr(loop_connection, "statement", gated)
    monkeypatch.setattr(postgres_bounds, "LOCK_WAIT_S", 60.0)  # for the gate
    with grouped(database_url) as opened:
        yield opened


@pytest.fixture
def meanwhile(database_url):
    """Have a group come to its gate, change something, and open the gate; give the answers."""

    def run(groups, asked, change):
        with psycopg.connect(database_url, autocommit=True) as keeper, ThreadPoolExecutor(1) as threads:
            keeper.execute("SELECT pg_advisory_lock(7)")
            answers = threads.submit(groups.together, *asked)
            waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
            wait_until(lambda: keeper.execute(waiting).fetchone(), 60)
            change()
            keeper.execute("SELECT pg_advisory_unlock(7)")
            return answers.result(60)

    return run


def said(sql):
    """A change in SQL."""
    return lambda world, run: world.setting.execute(sql.format(run=run))


REFUSED = {
    "claimed again": said("UPDATE flujo_attempts SET fence = fence + 1 WHERE run_id = '{run}'"),
    "given back": said("UPDATE flujo_attempts SET status = 'ready' WHERE run_id = '{run}'"),
    "scope moved": said("UPDATE flujo_scopes SET version = version + 1 WHERE run_id = '{run}'"),
    "scope closed": said("UPDATE flujo_scopes SET status = 'cancelled' WHERE run_id = '{run}'"),
    "cancelled": lambda world, run: world.request_cancel(run),
    "stopped": lambda world, run: world.stores.backlog.stop(run, "expired", "late"),
    "broken off": lambda world, run: world.stores.attempts.break_off(run, Fault("system", "X", "broken", "broken")),
}
HARMLESS = {
    "adopted": said("UPDATE flujo_attempts SET worker = 'reborn' WHERE run_id = '{run}'"),
    "lane given": said("UPDATE flujo_scopes SET lanes = '{{\"f\": 1}}' WHERE run_id = '{run}'"),
    "parked": said("UPDATE flujo_runs SET status = 'parked', reason = 'x' WHERE id = '{run}'"),
}
CLAIMS = {
    "sent again": (said("UPDATE flujo_attempts SET status = 'queued', sends = 5 WHERE run_id = '{run}'"), True),
    "claimed": (
        said("UPDATE flujo_attempts SET status = 'running', fence = 4, worker = 'w2' WHERE run_id = '{run}'"),
        False,
    ),
    "lost": (said("UPDATE flujo_attempts SET losses = 2 WHERE run_id = '{run}'"), False),
    "begun": (said("UPDATE flujo_runs SET status = 'running' WHERE id = '{run}'"), True),  # by a later group
    "stopped": (lambda world, run: world.stores.backlog.stop(run, "cancelled", "enough"), False),
}


def running(world, count=3):
    news = [world.record(enqueued(PIPELINE, context={"n": 1})) for _ in range(count)]
    return news, [decided(new, succeeded("one", {"n": 2}), fence=world.claim(new)) for new in news]


@pytest.mark.parametrize("change", REFUSED)
def test_a_merge_goes_by_what_stands_when_it_has_its_locks(world, groups, meanwhile, change):
    news, decisions = running(world)
    run = news[1].first.ticket.run
    answers = meanwhile(
        groups, [groups.ledger.commit(each) for each in decisions], partial(REFUSED[change], world, run)
    )
    assert answers == [MERGED, None, MERGED]
    assert [each.output for each in world.attempts(run)] == [None]
    assert world.run(run).context == news[1].first.context


@pytest.mark.parametrize("change", HARMLESS)
def test_a_merge_follows_rows_that_changed_for_another_reason(world, groups, postgres, meanwhile, change):
    news, decisions = running(world)
    run = news[1].first.ticket.run
    answers = meanwhile(
        groups, [groups.ledger.commit(each) for each in decisions], partial(HARMLESS[change], world, run)
    )
    assert answers == [MERGED] * 3
    assert [each.status for each in world.attempts(run)] == ["succeeded", "ready"]
    assert world.run(run).context == packed({"n": 2})
    [kept] = postgres.rows(
        "SELECT a.worker, s.lanes, r.status FROM flujo_attempts a JOIN flujo_scopes s USING (run_id) JOIN flujo_runs r ON r.id = run_id"
        " WHERE r.id = %(run)s AND a.status = 'succeeded'",
        run=run,
    )
    assert {
        "adopted": kept["worker"] == "reborn",
        "lane given": kept["lanes"] == {"f": 1},
        "parked": kept["status"] == "parked",
    }[change]


@pytest.mark.parametrize("change", CLAIMS)
def test_a_claim_goes_by_what_stands_when_it_has_its_locks(world, groups, meanwhile, change):
    make, is_claimed = CLAIMS[change]
    news = [world.record(enqueued(PIPELINE)) for _ in range(3)]
    run = news[1].first.ticket.run
    asked = [groups.ledger.claim(new.first.key, "w1") for new in news]
    answers = meanwhile(groups, asked, partial(make, world, run))
    assert answers == [Claim(1), Claim(1) if is_claimed else None, Claim(1)]
    assert (world.attempts(run)[0].worker == "w1") is is_claimed


def test_a_branch_hears_of_an_abort_that_its_merge_did_not_see(world, groups, meanwhile):
    """ADR 15: the abort's own signal found that branch open, so nobody else signals the join."""
    failing, last = fanned_out(world, 2)
    abort = closing(failing, fence=world.claim(failing), status="failed", aborts=True)
    merge = closing(last, fence=world.claim(last), lane=1)

    def change():
        assert world.commit(abort) == "merged"
        world.stores.scopes.wind_down_branches(last.ticket.run, FAN)
        assert not signal_join(world, failing)

    assert meanwhile(groups, [groups.ledger.commit(merge)], change) == [Committed("merged", must_signal=True)]
    assert signal_join(world, last)
