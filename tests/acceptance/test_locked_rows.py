"""Rows that somebody else's transaction has locked: what needs them waits, and everything else goes on (issue 35, 1).

A person's `BEGIN; SELECT … FOR UPDATE` in psql, a report, a frozen process: each holds rows for as long as it likes.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from flujo_client.contract.limits import UsageLimits
from flujo_client.errors import ClientError
from flujo_client.gateway import operator_requests
from flujo_worker.errors import RowLocked
from flujo_worker.store.postgres.stores import PostgresStores
from tests.support.fleet import Site, assert_merged_once, one_process, own_pool, wait_until

pytestmark = [pytest.mark.acceptance, one_process]

SLOTS = 8
SOON_S = 2.0
"""Seconds within which innocent runs end while others are locked, on a machine that does nothing else."""
TABLES = """
SELECT c.relname AS name FROM pg_class c
WHERE c.relnamespace = 'public'::regnamespace AND starts_with(c.relname, 'flujo_') AND c.relkind IN ('r', 'p') AND NOT c.relispartition
ORDER BY 1
"""


@pytest.fixture(scope="module")
def site(services, tmp_path_factory):
    worker = {"lease_s": 3.0, "renew_s": 0.5, "sweep_s": 0.5, "concurrency": SLOTS}
    with Site(services, tmp_path_factory.mktemp("site"), worker=worker) as site:
        yield site


@contextmanager
def locked(site, *selects, **parameters):
    """Hold the rows of these statements in an idle transaction."""
    with site.connection() as connection:
        connection.execute("SET application_name = 'a careless person'")
        for select in selects:
            assert connection.execute(select.encode(), parameters).fetchall(), select
        yield connection
        connection.rollback()


def assert_innocents_end(site, pipeline="acceptance_pipelines:three", number=5, tries=3, **options):
    """Assert that other runs end soon, in one of three tries: a machine that runs other tests may be late."""
    began = time.monotonic()
    runs = [site.client.enqueue(pipeline, [], **options) for _ in range(number)]
    for run in runs:
        assert run.result(timeout=120).run_status == "succeeded", site.log()
    if time.monotonic() - began >= SOON_S:
        assert tries > 1, site.log()
        assert_innocents_end(site, pipeline, number, tries - 1, **options)


OF_RUNS = (
    "SELECT 1 FROM flujo_attempts WHERE run_id = ANY(%(runs)s) FOR UPDATE",
    "SELECT 1 FROM flujo_scopes WHERE run_id = ANY(%(runs)s) FOR UPDATE",
    "SELECT 1 FROM flujo_runs WHERE id = ANY(%(runs)s) FOR UPDATE",
)


@own_pool  # in others, an outcome that waits for a lock keeps its slot
def test_merges_that_wait_for_a_lock_leave_their_slots_and_connections_to_others(site):
    """More runs than slots; none of their outcomes is lost, done twice, or counted as a loss."""
    site.standing()
    victims = [site.enqueue("waiting") for _ in range(SLOTS)]
    for run in victims:
        site.wait_for_execution(run.id, "gate")
    with locked(site, *OF_RUNS, runs=[run.id for run in victims]):
        for run in victims:
            site.open_gate(run.id)
        wait_until(lambda: all(site.events(run.id, "attempt.waits_for_lock") for run in victims), what=site.log)
        assert_innocents_end(site)
        time.sleep(4.0)  # longer than a lease
    for run in victims:
        assert_merged_once(site, run, ["gate", "after"])
        assert len(site.executions(run.id)) == 2
        [event] = site.events(run.id, "attempt.waits_for_lock")
        assert "a careless person, idle in transaction" in event["data"]["holders"][0]
    assert site.stuck() == []


def test_messages_whose_rows_are_locked_go_back_to_the_line(site):
    """Claims wait nowhere: not in a slot, not on a connection."""
    site.dismiss()
    victims = [site.enqueue("waiting") for _ in range(2 * SLOTS)]
    for run in victims:
        site.open_gate(run.id)
    with locked(site, *OF_RUNS, runs=[run.id for run in victims]):
        site.standing()
        wait_until(lambda: all(site.events(run.id, "attempt.waits_for_lock") for run in victims), what=site.log)
        assert_innocents_end(site)
    for run in victims:
        assert_merged_once(site, run, ["gate", "after"])
        assert {(row["number"], row["losses"]) for row in site.attempts(run.id)} == {(1, 0)}
    assert site.stuck() == []


@own_pool  # the twenty branches have eight slots
def test_one_locked_budget_holds_its_own_run_up_alone(site):
    """Twenty paid branches under one budget: claims of it, and merges."""
    limits = UsageLimits(total_tokens_limit=1000)
    site.standing()
    gated = [site.client.enqueue("budget_pipelines:gated", [], limits=limits) for _ in range(2)]
    for run in gated:
        site.wait_for_execution(run.id, "gate")
    victim = site.client.enqueue("budget_pipelines:twenty", [], limits=limits)
    budget = "SELECT 1 FROM flujo_budgets WHERE scope = ANY(%(scopes)s) FOR UPDATE"
    wait_until(lambda: site.rows("SELECT 1 FROM flujo_budgets WHERE scope LIKE %(of)s", of=f"%{victim.id}%"))
    scopes = site.rows(
        "SELECT scope FROM flujo_budgets WHERE scope LIKE ANY(%(of)s)", of=[f"%{victim.id}%", f"%{gated[0].id}%"]
    )
    with locked(site, budget, scopes=[row["scope"] for row in scopes]):
        for run in gated:
            site.open_gate(run.id)
        assert_innocents_end(site)
        assert gated[1].result(timeout=120).run_status == "succeeded", site.log()
        assert_innocents_end(site, "budget_pipelines:three", number=3, limits=limits)
    assert {run.result(timeout=60).run_status for run in [gated[0], victim]} == {"succeeded"}
    assert [run.budgets()[0].spent_tokens for run in (gated[0], victim)] == [10, 200]
    assert site.stuck() == []


def test_whichever_rows_are_locked_innocent_runs_go_on(site):
    """The monkey: all rows of each of our tables in turn, for longer than a sweep. What is enqueued meanwhile ends, and so does what waited."""
    site.standing()
    before = [site.enqueue("waiting") for _ in range(2)]
    for table in [row["name"] for row in site.rows(TABLES)]:
        with site.connection() as monkey:
            monkey.execute(f"SELECT 1 FROM {table} FOR UPDATE".encode())
            if table == "flujo_pipelines":  # a new run refers to its pipeline's row
                site.open_gate(before[0].id)
                assert before[0].result(timeout=120).run_status == "succeeded", site.log()
            else:
                assert_innocents_end(site, number=2)
                assert_innocents_end(site, "acceptance_pipelines:stubborn", number=1)
            monkey.rollback()
    site.open_gate(before[1].id)
    for run in before:
        assert_merged_once(site, run, ["gate", "after"])
        assert len(site.executions(run.id)) == 2
    assert site.stuck() == []


def test_a_worker_whose_lease_is_locked_takes_another_one_in_time(site):
    """And sweeps go on, although no one can take a turn."""
    site.standing()
    run = site.enqueue("waiting")
    site.wait_for_execution(run.id, "gate")
    rows = "SELECT 1 FROM flujo_workers FOR UPDATE", "SELECT 1 FROM flujo_sweeps FOR UPDATE"
    with locked(site, *rows) as monkey:
        monkey.execute("SELECT pg_sleep(2 * 3.0)")
        assert_innocents_end(site)
        site.redis.flushdb()
        assert_innocents_end(site, "acceptance_pipelines:stubborn", number=1)
    site.open_gate(run.id)
    assert_merged_once(site, run, ["gate", "after"])
    [first, _] = site.attempts(run.id)
    assert (first["fence"], first["losses"], len(site.executions(run.id))) == (1, 0, 2)


def test_a_client_that_needs_a_locked_row_is_told_who_holds_it(site):
    run = site.enqueue("waiting", queue="nowhere")
    with locked(site, "SELECT 1 FROM flujo_runs WHERE id = %(run)s FOR UPDATE", run=run.id):
        began = time.monotonic()
        with pytest.raises(ClientError, match=r"locked by pid .*a careless person, idle in transaction") as caught:
            run.cancel(timeout=1)
        assert caught.value.error_code == "LOCKED"
        assert time.monotonic() - began < 4 * SOON_S
        [holder] = wait_until(lambda: site.client.ask(operator_requests.lock_holders()), what="no session is listed")
        assert (holder.application, holder.state) == ("a careless person", "idle in transaction")
        assert holder.age_s > operator_requests.LONG_S
    assert run.cancel(timeout=30)


SHOWN = (
    b"SELECT current_setting('lock_timeout') || ' ' || current_setting('idle_in_transaction_session_timeout') AS bounds"
)


@pytest.mark.parametrize("prepare", [True, False], ids=["in its own session", "in each transaction"])
def test_every_statement_of_a_worker_is_bounded(site, prepare):
    """Behind a pooler nothing can be set for a session, so each transaction sets it; one for a single statement too."""
    stores = PostgresStores(site.settings.database(), prepare=prepare).open()

    def shown(connection):
        alone = connection.execute(SHOWN).fetchone()
        with connection.transaction():
            return [alone["bounds"], connection.execute(SHOWN).fetchone()["bounds"]]

    run = site.enqueue("waiting", queue="nowhere")
    try:
        assert stores.pool.with_retry(shown) == ["500ms 5s", "500ms 5s"]
        with (
            locked(site, "SELECT 1 FROM flujo_runs WHERE id = %(run)s FOR UPDATE", run=run.id),
            pytest.raises(RowLocked, match=r"locked by pid .*a careless person"),
        ):
            stores.backlog.stop(run.id, "cancelled", "no longer needed")
        is_stopped = stores.backlog.stop(run.id, "cancelled", "no longer needed")
        assert is_stopped or run.status() == "cancelled"  # a worker may have seen the request first
    finally:
        stores.close()


def test_a_session_that_has_just_ended_its_transaction_holds_nothing(site):
    """Postgres reads locks and sessions one after the other: a short transaction may end between the two."""
    over = threading.Event()

    def lock_and_let_go():
        with site.connection() as connection:
            while not over.is_set():
                connection.execute("SELECT 1 FROM flujo_budgets FOR UPDATE")
                connection.rollback()

    with ThreadPoolExecutor(4) as sessions:
        busy = [sessions.submit(lock_and_let_go) for _ in range(4)]
        try:
            assert [site.client.ask(operator_requests.lock_holders()) for _ in range(400)] == [[]] * 400
        finally:
            over.set()
        assert [each.result() for each in busy] == [None] * 4
