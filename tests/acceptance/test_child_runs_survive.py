"""Child runs in real processes: listed, cancelled, waited for without a worker, and found again when a bell is lost (SYS-16, U-16)."""

import time

import pytest

from flujo_client.cli.lookup import find_run
from tests.support.fleet import assert_merged_once, one_process, wait_until

pytestmark = pytest.mark.acceptance

TRAIL = ["first", "second", "again", "third"]
SOON_S = 15.0


@pytest.fixture(scope="module", autouse=True)
def survivor(site):
    """The worker that carries on."""
    return site.workers(1)


def enqueue(site, name, value=None, **options):
    return site.client.enqueue(f"child_run_pipelines:{name}", [] if value is None else value, **options)


def child_of(site, run):
    found = wait_until(run.children, what=site.log)
    return site.client.get_run(found[0].id)


def gate(site, run):
    """Wait until the run's gated step has begun."""
    site.wait_for_execution(run.id, "gated")


def test_a_child_run_is_a_run_of_its_own(site):
    run = enqueue(site, "reading", tenant="acme")
    result = run.result(timeout=SOON_S)
    [record] = run.children()
    own = site.client.get_run(record.id).result()
    assert (result.output, result.final_pipeline_context.visits) == (TRAIL, TRAIL)
    assert ([each.name for each in own.step_history], own.output) == (["second", "again"], TRAIL[:3])
    assert (record.name, record.parent_run, record.tenant, record.status) == ("reading", run.id, "acme", "succeeded")
    assert record.id in {each.id for each in site.client.list_runs(tenant="acme")}
    assert [event["data"]["by"] for event in site.events(run.id, "join.rung")] == ["worker"]


def test_a_run_is_meant_by_the_beginning_of_its_id_though_its_children_share_it(site):
    run = enqueue(site, "reading")
    run.result(timeout=SOON_S)
    [record] = run.children()
    assert find_run(site.client, run.id[:-1]).id == find_run(site.client, run.id).id == run.id
    assert find_run(site.client, record.id[:-1]).id == record.id


@pytest.mark.parametrize(
    ("name", "output"),
    [("wide", dict.fromkeys("abcd", TRAIL[1:3])), ("rounds", TRAIL[1:3] * 3)],
)
def test_branches_and_iterations_may_be_child_runs(site, name, output):
    run = enqueue(site, name)
    result = run.result(timeout=SOON_S)
    assert result.output == output, site.log()
    assert len(run.children()) == (4 if name == "wide" else 3)
    assert "sweeper" not in {event["data"]["by"] for event in site.events(run.id, "join.rung")}


def test_a_worker_that_dies_between_the_childs_end_and_the_bell_costs_no_run(site, survivor):
    """M-001: kill -9 at this place; the sweeper rings."""
    marker = site.folder / "before_parent_ring"
    armed = site.workers(failpoints=f"before_parent_ring:kill:{marker}")
    began, runs = time.monotonic(), []
    while not marker.exists():
        assert len(runs) < 100
        runs += [enqueue(site, "reading", context={}) for _ in range(2)]  # one alone: the workers take turns
        for run in runs[-2:]:
            run.result(timeout=SOON_S)
    wait_until(lambda: not armed.pids, what="the armed process has died")
    for run in runs:
        assert run.result().output == TRAIL
        assert len(site.events(run.id, "step.succeeded")) == 3
        assert_merged_once_in_child(site, run)
    rung_by = [event["data"]["by"] for run in runs[-2:] for event in site.events(run.id, "join.rung")]
    assert "sweeper" in rung_by
    assert time.monotonic() - began < SOON_S * len(runs)
    assert survivor.pids


def assert_merged_once_in_child(site, run):
    [record] = run.children()
    assert [event["data"]["step"] for event in site.events(record.id, "step.succeeded")] == ["second", "again"]
    assert len(site.events(record.id, "run.succeeded")) == 1


@one_process
def test_a_worker_that_dies_in_a_child_run_costs_no_run(site, survivor):
    doomed = site.workers()
    for _ in range(50):
        run = enqueue(site, "gated")
        child = child_of(site, run)
        if site.wait_for_execution(child.id, "gated").pid in doomed.pids:
            break
        site.open_gate(child.id)
    doomed.kill()
    site.open_gate(child.id)
    assert run.result(timeout=SOON_S).output == ["first", "gated", "third"]
    assert len(site.executions(child.id, "gated")) == 2


def test_a_cancel_takes_every_child_run_with_it(site):
    """However deep: one level with each sweep."""
    run = enqueue(site, "nested")
    child = child_of(site, run)
    inner = child_of(site, child)
    gate(site, inner)
    assert run.cancel(reason="enough")
    wait_until(lambda: inner.status() == "cancelled", SOON_S, what=site.log)
    assert (child.record().reason, inner.record().reason) == ("parent ended", "parent ended")
    wait_until((site.folder / f"cancelled-{inner.id}").exists, SOON_S, what="its step is told")
    for each in (run, child, inner):
        assert {row["status"] for row in site.attempts(each.id)} <= {"succeeded", "cancelled"}


def test_a_child_run_can_be_cancelled_alone(site):
    run = enqueue(site, "gated")
    child = child_of(site, run)
    gate(site, child)
    assert child.cancel(reason="not needed")
    result = run.result(timeout=SOON_S)
    assert (result.run_status, result.error.code) == ("failed", "CHILD_CANCELLED")
    assert "not needed" in result.error.message


def test_no_worker_is_held_by_one_who_waits(site):
    """More wait than there are slots, and others run meanwhile: if those who wait held them, no child run would get one.

    The gates are opened one after the other, for a step at its gate does hold a slot.
    """
    runs = [enqueue(site, "gated") for _ in range(12)]
    other = site.enqueue("three")
    for run in runs:
        site.open_gate(child_of(site, run).id)
    for run in runs:
        assert run.result(timeout=2 * SOON_S).output == ["first", "gated", "third"]
    assert_merged_once(site, other, ["first", "second", "third"])
