"""Concurrency limits: at most so many attempts run under a name, in every store, whichever process dies (U-13)."""

import pytest
from trees import fanned_out
from worlds import LEASE_S, ROUNDS, World, member

from flujo_worker.domain.permit import PATIENCE_S, PermitRequest
from tests.support.builders import enqueued, pipeline_of, succeeded


@pytest.fixture
def recorded(world):
    """Returns a function that records runs of one step each."""
    return lambda count: [world.record(enqueued(pipeline_of("a"), run_id=f"run_{index}")) for index in range(count)]


def ask(world, new, *, name="crm", at_once=2, worker="w1", on_full="queue"):
    """Claim an attempt and ask for its permit."""
    fence = world.claim(new, worker)
    assert fence is not None
    return world.stores.limits.request_permit(PermitRequest(new.first.key, fence, "a", name, at_once, on_full))


def end(world, new):
    """Conclude an attempt that runs and release its permit; return which attempts are to begin."""
    [row] = world.attempts(new.first.ticket.run)
    assert world.conclude(new, succeeded(), fence=row.fence) == "merged"
    return world.stores.limits.release_permit(new.first.key, row.fence, "crm")


def keys(*runs):
    return [new.first.key for new in runs]


def test_no_more_than_its_number_run(world, recorded):
    """U-13: the others return to their rows, and say what they wait for."""
    runs = recorded(4)
    assert [ask(world, new) for new in runs] == [True, True, False, False]
    assert [world.status(new) for new in runs] == ["running", "running", "ready", "ready"]
    [told] = [event for event in world.events("run_2") if event.name == "flujo.limit.waiting"]
    assert told.data == {"step": "a", "limit": "crm", "at_once": 2, "in_use": 2}


def test_names_do_not_share_places(world, recorded):
    first, second = recorded(2)
    assert ask(world, first, name="crm:1", at_once=1)
    assert ask(world, second, name="crm:2", at_once=1)


def test_places_are_offered_in_the_order_of_asking(world, recorded):
    """First come, first served: also against one that asks for the first time while a place is free."""
    runs = recorded(5)
    for new in runs[:4]:
        ask(world, new)
    assert end(world, runs[0]) == keys(runs[2])
    assert not ask(world, runs[4])
    assert ask(world, runs[2])
    assert end(world, runs[1]) == keys(runs[3])
    assert end(world, runs[2]) == keys(runs[4])
    assert ask(world, runs[3])
    assert ask(world, runs[4])


def test_a_place_is_offered_once(world, recorded):
    runs = recorded(4)
    for new in runs:
        ask(world, new)
    assert end(world, runs[0]) == keys(runs[2])
    assert world.stores.limits.offer_permits() == []


def test_one_that_does_not_come_goes_to_the_end_of_the_line(world, recorded):
    """Its queue may have no worker: the others must not wait for it forever."""
    runs = recorded(4)
    for new in runs:
        ask(world, new, at_once=1)
    assert end(world, runs[0]) == keys(runs[1])
    offered = []
    for _ in range(4):
        world.pass_time(PATIENCE_S + 1)
        offered += world.stores.limits.offer_permits()
    assert offered == keys(runs[2], runs[3], runs[1], runs[2])


def test_a_permit_lasts_as_long_as_the_lease_of_its_worker(world, recorded):
    """A killed worker releases nothing; its place is free when its lease is over."""
    world.register_worker("w2")
    held, waiting = recorded(2)
    assert ask(world, held, at_once=1)
    assert not ask(world, waiting, at_once=1, worker="w2")
    assert world.stores.limits.offer_permits() == []
    world.pass_time(LEASE_S + 1)
    world.register_worker("w2")
    assert world.stores.limits.offer_permits() == keys(waiting)
    assert ask(world, waiting, at_once=1, worker="w2")


def taken_away(world, new, at_once):
    """A run whose worker w1 stood still: w2 may claim it."""
    assert ask(world, new, at_once=at_once)
    world.pass_time(LEASE_S + 1)
    world.register_worker("w2")
    world.due()


def test_a_worker_that_stood_still_takes_no_permit_from_the_one_after_it(world, recorded):
    """U-13: its attempt runs elsewhere by now."""
    lost, other, waiting = recorded(3)
    taken_away(world, lost, at_once=2)
    assert ask(world, other, worker="w2")
    assert ask(world, lost, worker="w2")
    assert world.stores.limits.release_permit(lost.first.key, 1, "crm") == []
    assert not ask(world, waiting, worker="w2")


def test_a_worker_that_stood_still_takes_no_attempt_out_of_the_line(world, recorded):
    """U-13: its attempt waits for a place by now, and would wait for minutes."""
    lost, other = recorded(2)
    taken_away(world, lost, at_once=1)
    assert ask(world, other, at_once=1, worker="w2")
    assert not ask(world, lost, at_once=1, worker="w2")
    assert world.stores.limits.release_permit(lost.first.key, 1, "crm") == []
    assert end(world, other) == keys(lost)


def test_a_stopped_run_leaves_the_line(world, recorded):
    first, stopped, third = recorded(3)
    for new in (first, stopped, third):
        ask(world, new, at_once=1)
    assert world.stores.backlog.stop("run_1", "cancelled", "asked")
    assert end(world, first) == keys(third)


def test_a_higher_number_holds_from_the_next_request_on(world, recorded):
    runs = recorded(4)
    for new in runs[:3]:
        ask(world, new, at_once=1)
    assert not ask(world, runs[3], at_once=3)
    assert world.stores.limits.offer_permits() == keys(runs[1], runs[2])


def test_what_is_dropped_keeps_its_claim_and_joins_no_line(world, recorded):
    """U-13: so that its failure can be merged, and no place is offered to it."""
    held, dropped, third = recorded(3)
    assert ask(world, held, at_once=1)
    assert not ask(world, dropped, at_once=1, on_full="drop")
    assert world.status(dropped) == "running"
    assert [event for event in world.events("run_1") if event.name == "flujo.limit.waiting"] == []
    assert end(world, held) == []
    assert ask(world, third, at_once=1)


def stopping(world):
    return dict(world.stores.backlog.runs_to_stop(10))


def test_the_oldest_is_cancelled_for_one_that_finds_no_place(world, recorded):
    """U-13: the run whose attempt asked first, whether it runs or waits; the latest one stays, and begins when that has ended."""
    runs = recorded(3)
    assert ask(world, runs[0], at_once=1)
    assert not ask(world, runs[1], at_once=1, on_full="cancel_oldest")
    assert stopping(world) == {"run_0": "cancelled"}
    assert not ask(world, runs[2], at_once=1, on_full="cancel_oldest")
    assert stopping(world) == {"run_0": "cancelled", "run_1": "cancelled"}
    [told] = [event for event in world.events("run_0") if event.name == "run.cancel_requested"]
    assert told.data == {"reason": "replaced by run run_1 (limit 'crm')"}
    for name in ("run_0", "run_1"):
        world.stores.backlog.stop(name, "cancelled", "asked")
    assert world.stores.limits.release_permit(runs[0].first.key, 1, "crm") == keys(runs[2])
    assert ask(world, runs[2], at_once=1, on_full="cancel_oldest")
    assert world.run("run_0").reason == "replaced by run run_1 (limit 'crm')"


def test_no_more_are_cancelled_than_are_beyond_the_limit(world, recorded):
    runs = recorded(4)
    for new in runs[:3]:
        ask(world, new, at_once=3)
    assert not ask(world, runs[3], at_once=3, on_full="cancel_oldest")
    assert stopping(world) == {"run_0": "cancelled"}


def test_a_run_is_not_cancelled_for_an_attempt_of_its_own(world):
    """Branches of one run wait for each other."""
    branches = fanned_out(world, 2)
    fences = [world.stores.attempts.claim(each.key, "w1", max_lost=3).fence for each in branches]
    requests = [
        PermitRequest(each.key, fence, "a", "crm", 1, "cancel_oldest")
        for each, fence in zip(branches, fences, strict=True)
    ]
    assert [world.stores.limits.request_permit(each) for each in requests] == [True, False]
    assert stopping(world) == {}


@pytest.mark.services
def test_of_those_that_replace_each_other_at_the_same_instant_one_stays(postgres, race, no_deadlock):
    """U-13."""
    for number in range(ROUNDS):
        postgres.empty()
        world = World(postgres)
        runs = [world.record(enqueued(pipeline_of("a"), run_id=f"race_{number}_{index}")) for index in range(4)]
        requests = [PermitRequest(new.first.key, world.claim(new), "a", "crm", 1, "cancel_oldest") for new in runs]
        granted = race(
            *(lambda request=request: postgres.stores.limits.request_permit(request) for request in requests)
        )
        assert (sum(granted), len(stopping(world))) == (1, 3)


@pytest.mark.services
def test_those_who_ask_at_the_same_instant_are_counted_together(postgres, race, no_deadlock):
    """U-13: 4 attempts, 2 places; never 3 are let through."""
    for number in range(ROUNDS):
        postgres.empty()
        world = World(postgres)
        runs = [world.record(enqueued(pipeline_of("a"), run_id=f"race_{number}_{index}")) for index in range(4)]
        requests = [PermitRequest(new.first.key, world.claim(new), "a", "crm", 2) for new in runs]
        granted = race(
            *(lambda request=request: postgres.stores.limits.request_permit(request) for request in requests)
        )
        assert sum(granted) == 2


def adopted(world, *runs):
    """Which of these attempts a new incarnation of `w1`, whose lease was over, may continue."""
    return world.stores.leases.register_worker(member("w1~2"), LEASE_S, old="w1", held=keys(*runs))


def test_an_incarnation_whose_place_others_have_by_now_does_not_continue(world, recorded):
    """While a lease is over its places are free, and who was let through meanwhile has them."""
    first, second, other = recorded(3)
    assert ask(world, first)
    assert ask(world, second)
    world.pass_time(LEASE_S + 1)
    world.register_worker("w2")
    assert ask(world, other, worker="w2")
    assert adopted(world, first, second) == set(keys(first))
    assert adopted(world, first, second) == set(keys(first))  # the answer was lost


def test_an_incarnation_continues_what_still_has_its_place(world, recorded):
    first, second = recorded(2)
    assert ask(world, first)
    assert ask(world, second)
    world.pass_time(LEASE_S + 1)
    assert adopted(world, first, second) == set(keys(first, second))
