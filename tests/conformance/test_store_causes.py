"""Why a run is where it is, as data on its row and on those of its attempts: set when it should be, and null again."""

from datetime import datetime

import pytest
from test_store_child_runs import beginning, first_of
from test_store_plan_moves import carry_on, plan_of
from trees import concluded, moved

from flujo_client.contract.admission import Gate
from flujo_client.contract.code import ParkCause
from flujo_client.contract.outcome import Fault
from flujo_worker.domain.permit import PermitRequest
from flujo_worker.domain.values import EndRun
from flujo_worker.ports import ClaimId
from tests.support.builders import decided, enqueued, failed, following, pipeline_of, succeeded

FAULT = Fault("system", "X", "broken", "broken")


def run_of(new):
    return new.first.ticket.run


@pytest.fixture
def new(world):
    return world.record(enqueued(pipeline_of("a", "b", max_retries=1)))


def test_a_failed_run_names_the_attempt_whose_error_ended_it(world, new):
    first = decided(new, failed(), fence=world.claim(new))
    world.commit(first)
    assert world.run(run_of(new)).failed_key is None
    last = following(first)
    world.conclude(new, failed(), at=last, fence=world.claim(last))
    run = world.run(run_of(new))
    assert (run.status, run.failed_key, run.error.key) == ("failed", last.key, last.key)


def test_a_run_that_succeeded_names_none(world):
    new = world.record(enqueued())
    world.conclude(new, succeeded(), fence=world.claim(new))
    assert world.run(run_of(new)).failed_key is None


def test_a_run_whose_child_run_failed_names_the_attempt_in_that(world):
    new = world.record(enqueued(pipeline_of("a", "legal", "b")))
    begun = beginning(new.first, fence=world.claim(new))
    world.commit(begun)
    child = first_of(world, begun)
    outcome = failed(key=child.key)
    ended = EndRun("failed", "step 'x' failed", outcome.fault)
    move = moved(child, status="failed", fault=outcome.fault, merges=True)
    world.commit(concluded(child, move, fence=world.claim(child), close="failed", end=ended, outcome=outcome))
    found = world.stores.scopes.child_run(child.ticket.run)
    assert (found.fault.key, world.run(child.ticket.run).failed_key) == (child.key, child.key)


@pytest.mark.parametrize("at", [True, False])
def test_a_run_that_is_broken_off_names_the_attempt_that_met_it(world, new, at):
    world.claim(new)
    assert world.stores.attempts.break_off(run_of(new), FAULT, at=ClaimId(new.first.key) if at else None)
    world.stores.backlog.stop(run_of(new), "failed", "no")
    assert world.run(run_of(new)).failed_key == (new.first.key if at else None)


def park(world, new, **rest):
    world.stores.plan_moves.park(new.first.key, world.claim(new), "its key is not here", **rest)
    return world.run(run_of(new)).parked


@pytest.mark.parametrize("cause", [ParkCause("key", "2026a"), ParkCause("import", "a\x00b"), ParkCause("pinned")])
def test_a_parked_run_has_the_kind_and_the_time(world, new, cause):
    since = world.now()
    found = park(world, new, cause=cause)
    assert found.keys() == {"kind", "what", "at"}
    assert found["kind"] == cause.kind
    assert found["what"] == {"key": "2026a", "import": "a\ufffdb", "pinned": "its key is not here"}[cause.kind]
    assert datetime.fromisoformat(found["at"]).timestamp() == pytest.approx(since, abs=60)


def test_a_run_that_goes_on_is_not_parked(world, new):
    park(world, new)
    world.stores.plan_moves.unpark(run_of(new), "w1")
    assert world.run(run_of(new)).parked is None
    park(world, new)
    carry_on(world, new, plan_of("a", "c"))
    assert world.run(run_of(new)).parked is None


def test_a_run_that_was_replaced_at_a_gate_names_the_run_that_follows(world):
    gate = Gate("singleton 'x'", 1, policy="cancel_oldest")
    for name in ("r0", "r1"):
        world.record(enqueued(run_id=name, gates=(gate,)))
    assert [world.run(name).replaced_by for name in ("r0", "r1")] == ["r1", None]
    world.stores.backlog.stop("r0", "cancelled", "x")
    assert world.run("r0").replaced_by == "r1"


def test_a_run_that_was_replaced_at_a_limit_names_the_run_that_follows(world):
    runs = [world.record(enqueued(run_id=name)) for name in ("r0", "r1")]
    for new in runs:
        request = PermitRequest(new.first.key, world.claim(new), "a", "crm", 1, "cancel_oldest")
        world.stores.limits.request_permit(request)
    assert [world.run(name).replaced_by for name in ("r0", "r1")] == ["r1", None]
