"""Each fault of the machine, planted, is found by the health check; a machine at ordinary work has none (SYS-26, M-188)."""

from datetime import timedelta

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from flujo_client.config.models import Health
from flujo_client.health.facts import WINDOW_H, Depths, HealthQuery
from flujo_client.health.verdict import judge, machine_of, outcomes_of
from tests.support.health_traces import machine_facts, plant_attempt, plant_run, plant_worker, swept

pytestmark = pytest.mark.services

LONG = timedelta(hours=1)
NOW = timedelta()
QUIET = Depths({"flujo.attempts": 0})


@pytest.fixture(scope="module")
def database_url(migrated_url):
    return migrated_url


@pytest.fixture
def connection(database_url):
    """A transaction that leaves nothing behind, on a machine with one worker that has just swept."""
    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        plant_worker(connection, "alive", lease_s=5)
        swept(connection, 0.5)
        yield connection
        connection.rollback()


def judged(connection, depths=QUIET, **health):
    """The machine's facts, and the verdict's reasons by their codes."""
    settings = Health(**health)
    facts = machine_facts(connection, HealthQuery(), settings)
    machine, outcomes = machine_of(facts, depths), outcomes_of(facts.ended, settings.baseline_hours)
    return machine, {reason.code: reason for reason in judge(outcomes, machine, settings, WINDOW_H).reasons}


def only(connection, code, depths=QUIET, **health):
    """The one reason that there is."""
    _, reasons = judged(connection, depths, **health)
    assert list(reasons) == [code]
    return reasons[code]


def live_run(connection, run, *, made=LONG, **attempt):
    plant_run(connection, run, made=made, began=made)
    if attempt:
        plant_attempt(connection, f"{run}:a", **{"began": made, **attempt})


def reservation(connection, key, scope="run:r", *, held=True, usd=1, in_budget=True):
    connection.execute(
        "INSERT INTO flujo_reservations (key, scope, run_id, usd, tokens, held) VALUES (%s, %s, %s, %s, 5, %s)",
        [key, scope, key.partition(":")[0], usd, held],
    )
    connection.execute(
        "INSERT INTO flujo_budgets (scope, reserved_usd, reserved_tokens) VALUES (%s, %s, %s) ON CONFLICT (scope) DO UPDATE "
        "SET reserved_usd = flujo_budgets.reserved_usd + excluded.reserved_usd, "
        "reserved_tokens = flujo_budgets.reserved_tokens + excluded.reserved_tokens",
        [scope, usd if in_budget else 0, 5 if in_budget else 0],
    )


def owed(connection, run, ago):
    plant_run(connection, run, status="succeeded", began=LONG, ended=ago)
    connection.execute(
        "INSERT INTO flujo_hook_calls (run_id, payload, created_at) VALUES (%s, 'post_run', now() - %s::interval)",
        [run, ago],
    )


def dropped(connection, data, ago=NOW):
    connection.execute(
        "INSERT INTO flujo_events (at, name, data) VALUES (now() - %s::interval, 'events.dropped', %s)",
        [ago, Jsonb(data)],
    )


def test_a_machine_at_ordinary_work_has_no_reason(connection):
    """Runs at work, waiting for a timer, a person, a child run, or an answer to a cancel; hooks about to be told; workers that left in order; held budgets."""
    live_run(connection, "works", status="running", worker="alive")
    live_run(connection, "waits", status="ready", due=-LONG)
    live_run(connection, "asks", status="paused", due=-LONG)
    live_run(connection, "queues", status="queued", due=timedelta(seconds=5))
    live_run(connection, "parent")
    plant_run(connection, "parent.child", parent_run="parent", made=LONG, began=LONG)
    plant_attempt(connection, "parent.child:a", status="running", worker="alive", began=LONG)
    plant_run(connection, "stops", cancel_requested_at=timedelta(seconds=5), made=LONG, began=LONG)
    live_run(connection, "joins", status="succeeded", ended=timedelta(seconds=5))
    plant_run(connection, "over", status="succeeded", began=LONG, ended=LONG)
    plant_attempt(connection, "over:a", began=LONG, ended=LONG)
    reservation(connection, "works:a")
    reservation(connection, "over:a", held=False, usd=0)
    connection.execute("UPDATE flujo_budgets SET reserved_tokens = 5")
    plant_worker(connection, "left", lease_s=-60, ended=timedelta(seconds=60))
    plant_worker(connection, "long dead", lease_s=-86_400)
    owed(connection, "told", timedelta(seconds=1))
    machine, reasons = judged(connection)
    assert reasons == {}
    assert (machine.live_workers, machine.waiting.count, machine.sweep_age_s) == (1, 1, 0.5)


def test_an_empty_machine_has_no_reason(connection):
    """No worker, no sweep and no work is nothing to be woken for."""
    connection.execute("DELETE FROM flujo_workers")
    connection.execute("UPDATE flujo_sweeps SET swept_at = '-infinity'")
    machine, reasons = judged(connection)
    assert (reasons, machine.sweep_age_s, machine.sweep_lag_s) == ({}, None, None)


def test_a_run_without_anything_to_do_is_stuck(connection):
    """Nothing runnable, no timer, no question: no one would ever move it."""
    live_run(connection, "stuck", status="succeeded", ended=LONG)
    live_run(connection, "fresh", status="succeeded", ended=timedelta(seconds=5))
    assert only(connection, "stuck_runs").named == ("stuck",)


def test_a_run_that_was_told_to_stop_and_did_not_is_stuck(connection):
    """Cancelled, or past its deadline, for longer than a sweep needs."""
    live_run(connection, "a", status="running", worker="alive")
    live_run(connection, "b", status="queued", due=timedelta(seconds=1))
    connection.execute("UPDATE flujo_runs SET cancel_requested_at = now() - interval '2 min' WHERE id = 'a'")
    connection.execute("UPDATE flujo_runs SET deadline_at = now() - interval '3 min' WHERE id = 'b'")
    assert only(connection, "stuck_runs").named == ("b", "a")


def test_a_parent_whose_child_run_ended_long_ago_is_stuck(connection):
    """The join that follows was never rung."""
    live_run(connection, "parent")
    plant_run(
        connection, "parent.child", status="succeeded", parent_run="parent", began=LONG, ended=timedelta(minutes=5)
    )
    machine, reasons = judged(connection)
    assert (list(reasons), machine.stuck_runs.oldest_s) == (["stuck_runs"], 300.0)


def test_a_parked_run_is_told_of(connection):
    plant_run(connection, "parked", status="parked", made=LONG)
    plant_attempt(connection, "parked:a", status="ready", due=LONG)
    assert only(connection, "parked_runs").named == ("parked",)


def test_runs_that_are_pinned_to_code_no_worker_has_are_a_fact_of_their_own(connection):
    """By their plan and its build; those whose build is up are about to continue."""
    for run in ("one", "two", "three"):
        plant_run(connection, run, name="old" if run != "three" else "up", status="parked", made=LONG)
    connection.execute(
        "UPDATE flujo_pipelines SET plan = '{\"on_change\": \"pin\"}', build = name WHERE name IN ('old', 'up')"
    )
    connection.execute("UPDATE flujo_workers SET code_build = 'up'")
    machine, reasons = judged(connection)
    assert (machine.parked_runs.count, machine.pinned_runs.count, machine.pinned_runs.oldest_s) == (3, 2, 3600.0)
    assert machine.pinned_runs.named == ("shop:old of old, build old",)
    assert "`flujo worker --build NAME`" in reasons["pinned_runs"].message


@pytest.mark.parametrize("worker", ["gone", "never enlisted", None])
def test_an_attempt_whose_worker_is_gone_is_an_orphan(connection, worker):
    """Beyond the lease, and beyond what a sweep needs."""
    plant_worker(connection, "gone", lease_s=-7200)
    live_run(connection, "r", status="running", worker=worker)
    assert only(connection, "orphans").named == ("r:a",)


def test_an_attempt_whose_lease_has_just_lapsed_is_the_sweepers(connection):
    plant_worker(connection, "gone", lease_s=-5)
    live_run(connection, "r", status="running", worker="gone")
    assert judged(connection)[1] == {}


def test_a_worker_that_died_is_told_of_for_a_while(connection):
    plant_worker(connection, "died", lease_s=-600)
    assert only(connection, "dead_workers").named == ("died",)
    assert judged(connection, dead_s=500)[1] == {}


def test_the_oldest_attempt_that_could_begin(connection):
    """Queued or ready and due; told from the threshold on."""
    live_run(connection, "old", status="queued", due=timedelta(seconds=300), began=None)
    live_run(connection, "due", status="ready", due=timedelta(seconds=10), began=None)
    machine, reasons = judged(connection)
    assert (list(reasons), machine.waiting.count, machine.waiting.oldest_s) == (["oldest_queued"], 2, 300.0)
    assert machine.queues["flujo.attempts"].waiting == 2
    assert judged(connection, queued_s=301)[1] == {}


def test_an_attempt_that_lost_its_worker_waits_since_then(connection):
    """It ran for an hour, and is queued again for ten seconds."""
    plant_worker(connection, "lost", lease_s=-10)
    live_run(connection, "r", status="queued", due=LONG, worker="lost", losses=1)
    assert judged(connection)[0].waiting.oldest_s == 10.0


def test_work_without_a_worker(connection):
    connection.execute("DELETE FROM flujo_workers")
    live_run(connection, "r", status="queued", due=NOW, began=None)
    assert only(connection, "no_worker").message == "1 attempts could begin, and no worker is alive"


def test_no_one_sweeps_though_workers_live(connection):
    swept(connection, 31)
    machine, reasons = judged(connection)
    assert (list(reasons), machine.sweep_age_s, machine.sweep_lag_s) == (["sweep_lag"], 31.0, 31.0)


def test_the_time_without_workers_is_not_the_sweepers(connection):
    """The first worker after a night off is not late."""
    connection.execute("DELETE FROM flujo_workers")
    plant_worker(connection, "new", lease_s=5, up_s=2)
    swept(connection, 40_000)
    machine, reasons = judged(connection)
    assert (reasons, machine.sweep_lag_s) == ({}, 2.0)


def test_hooks_that_no_one_calls(connection):
    """A run has ended, and its hooks were not told for long; told from the threshold on (ADR 22)."""
    owed(connection, "old", timedelta(seconds=300))
    owed(connection, "new", timedelta(seconds=5))
    machine, reasons = judged(connection)
    assert (list(reasons), machine.owed_hooks.count, machine.owed_hooks.oldest_s) == (["owed_hooks"], 2, 300.0)
    assert reasons["owed_hooks"].named == ("old post_run", "new post_run")
    assert judged(connection, queued_s=301)[1] == {}


def test_a_long_queue(connection):
    full = Depths({"flujo.attempts": 10_000, "flujo.control": 9_999})
    assert only(connection, "queue_depth", full).named == ("flujo.attempts",)


def test_a_broker_that_does_not_answer_is_a_fact(connection):
    """All else is told on what Postgres holds alone."""
    live_run(connection, "r", status="queued", due=NOW, began=None)
    machine, reasons = judged(connection, Depths(error="nobody there"))
    assert {code: each.message for code, each in reasons.items()} == {"broker_unreachable": "nobody there"}
    assert (machine.queues["flujo.attempts"].waiting, machine.queues["flujo.attempts"].messages) == (1, None)


@pytest.mark.parametrize(
    ("run", "attempt"),
    [("running", "succeeded"), ("running", "failed"), ("succeeded", "cancelled"), ("failed", "failed")],
)
def test_a_reservation_of_what_has_ended_is_a_leak(connection, run, attempt):
    """Also of a run that has ended; what was lost or cancelled keeps its own until then."""
    ended = {"ended": LONG} if run != "running" else {}
    plant_run(connection, "r", status=run, made=LONG, began=LONG, **ended)
    plant_attempt(connection, "r:a", status=attempt, reason="error", ended=LONG)
    plant_attempt(
        connection, "r:b", status="running" if run == "running" else "succeeded", worker="alive", began=LONG, **ended
    )
    reservation(connection, "r:a")
    assert only(connection, "reservation_leaks").named == ("r:a of run:r",)


@pytest.mark.parametrize(("status", "reason"), [("failed", "lost"), ("cancelled", None)])
def test_what_was_lost_keeps_its_reservation_until_the_run_ends(connection, status, reason):
    """Design §5: its cost is uncertain, and counted as spent."""
    live_run(connection, "r", status="running", worker="alive")
    plant_attempt(connection, "r:b", status=status, reason=reason, ended=LONG)
    reservation(connection, "r:b")
    assert judged(connection)[1] == {}


def test_a_reservation_without_an_attempt_is_a_leak(connection):
    reservation(connection, "nobody:a")
    assert only(connection, "reservation_leaks").named == ("nobody:a of run:r",)


def test_a_budget_that_is_not_the_sum_of_its_reservations_is_a_leak(connection):
    live_run(connection, "r", status="running", worker="alive")
    reservation(connection, "r:a", in_budget=False)
    assert only(connection, "reservation_leaks").named == ("run:r",)


def test_events_that_were_dropped_are_summed(connection):
    """Over the window: a day where none is asked for."""
    for count in (3, 4):
        dropped(connection, {"count": count})
    dropped(connection, {"count": 100}, timedelta(hours=25))
    dropped(connection, {"why": "it does not say how many"})
    assert only(connection, "events_dropped").message == "8 events were dropped"


def test_no_more_than_ten_are_named_the_oldest_first(connection):
    for number in range(12):
        live_run(connection, f"r{number:02}", status="succeeded", ended=timedelta(hours=1, seconds=-number))
    reason = only(connection, "stuck_runs")
    assert reason.message.startswith("12 runs are stuck")
    assert reason.named == tuple(f"r{number:02}" for number in range(10))
