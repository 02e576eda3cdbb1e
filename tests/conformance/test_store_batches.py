"""Requests in batches: pooled, taken by one claim at a time, submitted by the next one after a crash, and answered once."""

from dataclasses import replace

import pytest

from flujo_client.serial import Packed
from flujo_worker.domain.units import BatchedRequest, SettledUnit, Unit, UnitName
from flujo_worker.ports import ClaimId
from tests.support.builders import enqueued, succeeded

UNRUN, DONE = Packed.of({"status": "expired"}), Packed.of({"status": "succeeded"})
BOUNDS = {"wait_s": 30.0, "most": 10}


def claimed(world, worker="w1", new=None):
    """Return a claim, and a request of its attempt."""
    first = (new or world.record(enqueued())).first
    claim = world.stores.attempts.claim(first.key, worker, max_lost=2)
    place = f"{first.address}:{first.step}:1"
    request = BatchedRequest(f"id of {first.key}", first.ticket.run, place, "pool", Packed.of("body"), 10, 3600.0)
    return ClaimId(first.key, claim.fence, claim.claim_id), request


def taken(world, claim, **bounds):
    return world.stores.batches.take("pool", claim, **{**BOUNDS, **bounds})


def test_requests_wait_for_each_other_and_are_one_batch(world):
    store, (one, first), (two, second) = world.stores.batches, claimed(world), claimed(world)
    state = store.ask(first)
    assert (state.is_taken, state.result, round(state.left_s)) == (False, None, 3600)
    store.ask(second)
    store.ask(replace(second, id="other", pool="another"))
    assert taken(world, one) is None
    world.pass_time(31)
    held = taken(world, one)
    assert (held.handle, held.is_new) == (None, True)
    assert store.requests(held.id) == [(first.id, first.body), (second.id, second.body)]
    assert store.ask(first).is_taken
    assert taken(world, two) is None


def test_as_many_as_a_batch_takes_do_not_wait(world):
    store, (claim, request) = world.stores.batches, claimed(world)
    for n in range(3):
        store.ask(replace(request, id=str(n)))
    assert len(store.requests(taken(world, claim, most=2).id)) == 2
    world.pass_time(31)
    assert [each for each, _ in store.requests(taken(world, claim, most_bytes=9, most=2).id)] == []
    assert [each for each, _ in store.requests(taken(world, claim, most_bytes=10, most=2).id)] == ["2"]


def test_a_batch_is_in_hand_while_its_claim_runs(world):
    world.register_worker("w2")
    store, (one, request), (two, _) = world.stores.batches, claimed(world), claimed(world, "w2")
    store.ask(request)
    world.pass_time(31)
    held = taken(world, one)
    world.pass_time(10)
    assert taken(world, two) is None
    world.stores.leases.deregister_worker("w1")
    world.register_worker("w3")
    world.stores.attempts.claim(one.key, "w3", max_lost=2)
    again = taken(world, two)
    assert (again.id, again.handle, again.is_new) == (held.id, None, False)
    store.put_back(held.id, one, {"id": "late"}, after_s=0)
    store.put_back(held.id, two, {"id": "b1"}, after_s=60)
    assert taken(world, two) is None
    world.pass_time(61)
    assert taken(world, two).handle == {"id": "b1"}


def test_results_are_given_once(world):
    store, (one, first), (_, second) = world.stores.batches, claimed(world), claimed(world)
    store.ask(first)
    store.ask(second)
    world.pass_time(31)
    held = taken(world, one)
    store.end(held.id, {first.id: DONE}, UNRUN)
    store.end(held.id, {second.id: DONE}, UNRUN)
    assert [store.ask(each).result for each in (first, second)] == [DONE, UNRUN]
    assert store.requests(held.id) == []
    world.pass_time(61)
    assert taken(world, one) is None


@pytest.mark.parametrize("late", [True, False])
def test_what_is_asked_live_is_in_no_batch(world, late):
    store, (one, request) = world.stores.batches, claimed(world)
    store.ask(replace(request, deadline_s=40.0))
    world.pass_time(41 if late else 31)
    assert (taken(world, one) is None) == late
    assert (store.ask(request).left_s <= 0) == late


def test_a_request_is_deleted_with_the_units_of_its_step(world):
    new = world.record(enqueued())
    store, (claim, request) = world.stores.batches, claimed(world, new=new)
    name = UnitName(request.place, b"0123456789abcdef", 0)
    unit = Unit(request.run, name, claim.key, claim.fence, claim.claim_id, "agent__model.request")
    store.ask(request)
    world.pass_time(31)
    store.end(taken(world, claim).id, {request.id: DONE}, UNRUN)
    world.stores.units.settle([SettledUnit(unit, DONE)])
    world.stores.retention.prune_units(60, places=9, units=9)
    assert store.ask(request).result == DONE
    world.conclude(new, succeeded())
    world.pass_time(61)
    world.stores.retention.prune_units(60, places=9, units=9)
    assert store.ask(request).result is None


def test_what_nobody_waits_for_any_more_is_in_no_batch(world):
    store, (_, gone), (claim, request) = world.stores.batches, claimed(world), claimed(world)
    store.ask(gone)
    store.ask(request)
    world.stores.backlog.stop(gone.run, "cancelled", "enough")
    world.pass_time(31)
    assert store.requests(taken(world, claim).id) == [(request.id, request.body)]
