"""Chaos: many runs, three workers, and a fault every second. Everything runnable finishes, each step is merged once (SYS-32)."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path

import pytest
from chaos_faults import Injector, picture
from chaos_pipelines import CONTAINERS, QUEUES, SHAPES, load_of
from chaos_traffic import Customer, Ordered
from fleet import BRISK, STEPS, Site, wait_until

from flujo_client.transport.broker import Broker

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

SEEDS = (11, 12, 13)
SECONDS = 25.0
FINISHED_WITHIN_S = 60.0
"""A killer that comes last is to be lost in company twice, and alone three times."""
WORKERS = 3
CODE = f"{STEPS}:{Path(__file__).parent}"
SETTINGS = {**BRISK, "concurrency": 4, "max_lost": 2}
"""A queue builds up now and then. However often workers are killed, none but a killer's step may fail for it."""

UNENDED = "SELECT id, status, cancel_requested_at FROM flujo_runs WHERE ended_at IS NULL"
RINGS = "SELECT data ->> 'by' AS by, count(*) FROM flujo_events WHERE name = 'join.rung' GROUP BY 1"
LIVE = """
SELECT a.key, a.status, a.fence, a.sends, a.losses, a.sent_at, a.worker, w.lease_until > now() AS leased
FROM flujo_attempts a LEFT JOIN flujo_workers w ON w.id = a.worker WHERE a.status IN ('ready', 'queued', 'running')
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_finishes_and_each_step_is_merged_once(services, tmp_path, capsys, seed):
    """M-001, M-010, M-011, M-013, law of design §5: whatever fails meanwhile, and in whatever order."""
    with Site(services, tmp_path, worker=SETTINGS) as site:
        fleet = site.workers(WORKERS, arguments=("--queues", ",".join(QUEUES)), code=CODE)
        calm = {
            name: portrait(site, site.client.enqueue(f"chaos_pipelines:{name}", [], context={})) for name in CONTAINERS
        }
        customer, injector = Customer(site, seed), Injector(site, fleet, seed)
        customer.start()
        injector.rage(SECONDS)
        orders = customer.stop()
        wait_until(
            lambda: injector.mend() or not site.rows(UNENDED),
            FINISHED_WITHIN_S,
            what=lambda: stuck(site, seed, injector.tally),
        )
        tally = injector.settle()
        cancelled = [done for each in tally.cancels if (done := each.result()) is not None]
        with capsys.disabled():
            print(told(site, seed, orders, tally, cancelled))
        assert site.rows(LIVE) == []
        assert_cancels_held(site, [*orders, *(Ordered("killer", run) for run in tally.killers)], cancelled)
        assert_killers_failed(tally.killers)
        for order in orders:
            if order.run.status() == "cancelled":
                continue
            if order.shape in CONTAINERS:
                assert portrait(site, order.run) == calm[order.shape], order
            else:
                assert_undisturbed(site, order)
        assert tally.deadlocks == []


def assert_cancels_held(site, orders, cancelled):
    """Whatever was acknowledged as cancelled is as it was then, and nothing else ended so."""
    assert {order.run.id for order in orders if order.run.status() == "cancelled"} == {each.run for each in cancelled}
    assert [picture(site, each.run) for each in cancelled] == [each.picture for each in cancelled]
    assert cancelled, "no cancel came in time"


def assert_killers_failed(killers):
    """As lost, each of them, unless it was cancelled before."""
    ended = Counter(run.result().error.code for run in killers if run.status() != "cancelled")
    assert ended.keys() == {"ATTEMPT_LOST"}, ended


def assert_undisturbed(site, order):
    """The run gave what it gives when nothing fails, and each step went into version and story once."""
    steps, result = SHAPES[order.shape], order.run.result()
    assert (result.run_status, result.output) == ("succeeded", steps), order
    assert [step.name for step in result.step_history] == steps
    assert [step.output for step in result.step_history] == [steps[: n + 1] for n in range(len(steps))]
    assert result.final_pipeline_context.visits == steps
    assert result.final_pipeline_context.luggage == luggage_of(order.shape)
    assert site.root(order.run.id)["version"] == len(steps)
    assert [event["data"]["step"] for event in site.told(order.run.id, "step.succeeded")] == steps
    assert len(site.told(order.run.id, "run.succeeded")) == 1
    numbers = Counter((each["step"], each["status"]) for each in site.attempts(order.run.id))
    failures = {("falter", "failed"): 2} if order.shape == "faltering" else {}
    assert numbers == {(step, "succeeded"): 1 for step in steps} | failures


def portrait(site, run):
    """What a run with containers came to, but for times, ids, and the order in which branches happened to end.

    How far the siblings of a branch came that fails under `propagate` is chance, so of those runs it is the end alone.
    """
    result = run.result(timeout=FINISHED_WITHIN_S)
    if not result.success:
        rung = [part(run, event["attempt"]) for event in site.told(run.id, "join.rung")]
        waiting = "SELECT address FROM flujo_scopes WHERE run_id = %(run)s AND status = 'open'"
        ended = (result.run_status, result.error, result.final_pipeline_context, site.root(run.id)["version"])
        return ended, rung.count(":fan:fan:join"), len(site.told(run.id, "run.failed")), site.rows(waiting, run=run.id)
    scopes = "SELECT address, version, status, cursor FROM flujo_scopes WHERE run_id = %(run)s ORDER BY address"
    events = site.told(
        run.id, "step.succeeded", "step.failed", "fan_out.opened", "join.rung", "loop.iteration", "run.succeeded"
    )
    return {
        "result": (result.run_status, result.output, result.final_pipeline_context, history(result.step_history)),
        "scopes": site.rows(scopes, run=run.id),
        "attempts": Counter((part(run, each["key"]), each["status"]) for each in site.attempts(run.id)),
        "story": Counter((part(run, each["attempt"]), each["name"]) for each in events),
    }


def history(steps):
    return [
        (each.name, each.output, each.success, each.attempts, each.metadata_, history(each.step_history))
        for each in steps
    ]


def part(run, key):
    return (key or "").removeprefix(run.id)


def luggage_of(shape):
    return "".join(load_of(step) for step in ("first", "second")) if shape == "burdened" else ""


def stuck(site, seed, tally):
    return f"seed {seed}, {dict(tally.faults)}: {site.rows(UNENDED)}\n{site.rows(LIVE)}\n{site.log()}"


def told(site, seed, orders, tally, cancelled):
    """What happened, for whoever reads the numbers."""
    [refused] = site.rows("SELECT count(*) FROM flujo_events WHERE name = 'outcome.refused'")
    [apart] = site.rows("SELECT count(*) FROM flujo_events WHERE name = 'attempt.isolated'")
    [lost] = site.rows("SELECT sum(losses) AS count FROM flujo_attempts")
    begun = Counter((each.run, each.step, each.attempt) for order in orders for each in site.executions(order.run.id))
    repeated = begun.total() - len(begun)
    times = sorted(tally.recovered_s)
    again = f"p50 {statistics.median(times):.1f} s, max {times[-1]:.1f} s, n={len(times)}" if times else "nobody"
    refused_items = Broker(site.settings).refused().count
    nested = sum(order.shape in CONTAINERS for order in orders)
    rung = {row["by"]: row["count"] for row in site.rows(RINGS)}
    faults = ", ".join(f"{name} {often}" for name, often in tally.faults.most_common())
    return (
        f"\nseed {seed}: {len(orders)} runs, {nested} with containers, {begun.total()} executions, {len(cancelled)} of {len(tally.cancels)} cancels landed"
        f"\n  faults: {faults}; {tally.doubled} messages doubled, {tally.junk} items of junk, {refused_items} refused, {len(tally.killers)} killers failed or were cancelled, {apart['count']} times run apart"
        f"\n  repeated executions {repeated}, attempts lost {lost['count']}, outcomes refused {refused['count']}, "
        f"deadlocks {len(tally.deadlocks)}\n  joins rung by {rung}\n  kill -9 → running again: {again}"
    )
