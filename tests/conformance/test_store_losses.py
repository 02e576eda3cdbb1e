"""Losses: which are an attempt's own, which may be a neighbour's fault, and who may claim a suspect."""

import itertools

import pytest
from worlds import LEASE_S, MAX_LOST

from flujo_worker.ports import Claim, ClaimId
from flujo_worker.store.shared_rules import SUSPECT_AFTER
from tests.support.builders import enqueued, failed, member, succeeded

NAMES = map("process-{}".format, itertools.count())


@pytest.fixture
def new(world):
    return world.record(enqueued())


def process(world):
    """A worker process that lives."""
    name = next(NAMES)
    world.register_worker(name)
    return name


def crash(world, worker):
    """Its lease is over, and it has said nothing."""
    world.stores.leases.deregister_worker(worker)


def lose(world, new, times=1, *, room="shared", swept=True):
    """Let `times` processes that had claimed it in that room be found dead, by a sweep or by whoever claims it next."""
    for _ in range(times):
        worker = process(world)
        world.claim(new, worker, room=room)
        crash(world, worker)
        if swept:
            world.due()


def claim(world, new, *, room="shared"):
    return world.stores.attempts.claim(new.first.key, process(world), max_lost=MAX_LOST, room=room)


def is_poisoned(world):
    return bool(world.poisoned())


@pytest.mark.parametrize("swept", [True, False])
def test_losses_in_company_make_a_suspect_and_never_poison(world, new, swept):
    """M-013: however many neighbours took its process with them, in the worker or apart from it in one container."""
    lose(world, new, SUSPECT_AFTER, swept=swept)
    lose(world, new, 5 * MAX_LOST, room="apart", swept=swept)
    assert not is_poisoned(world)
    assert world.conclude(new, succeeded(), fence=claim(world, new, room="apart").fence) == "merged"


def test_a_loss_is_not_yet_a_suspicion(world, new):
    """One lost worker sends nothing into quarantine, however many attempts it ran."""
    lose(world, new, SUSPECT_AFTER - 1)
    assert claim(world, new).fence is not None


def test_a_suspect_is_refused_to_whoever_would_run_it_next_to_others(world, new):
    lose(world, new, SUSPECT_AFTER)
    before = world.picture(new.first.ticket.run)
    assert claim(world, new) == Claim(refusal="suspect", in_company=SUSPECT_AFTER)
    assert world.picture(new.first.ticket.run) == before
    assert claim(world, new, room="apart").fence == SUSPECT_AFTER + 1


def test_a_message_that_overtakes_the_commit_of_its_sweep_finds_a_suspect(world, new):
    """A sweep publishes before it commits: dropped as busy, the message would be missed for seconds."""
    lose(world, new, SUSPECT_AFTER - 1)
    worker = process(world)
    world.claim(new, worker)
    crash(world, worker)
    assert claim(world, new).refusal == "suspect"
    assert [due.why for due in world.due()] == ["lost"]
    assert claim(world, new).refusal == "suspect"


def test_a_suspect_that_a_live_worker_runs_is_busy(world, new):
    lose(world, new, SUSPECT_AFTER)
    world.claim(new, process(world), room="apart")
    assert [claim(world, new, room=room).refusal for room in ("shared", "apart", "alone")] == ["busy"] * 3


@pytest.mark.parametrize("swept", [True, False])
def test_losses_of_an_attempt_that_had_the_worker_for_itself_are_its_own(world, new, swept):
    lose(world, new, MAX_LOST, room="alone", swept=swept)
    assert not is_poisoned(world)
    worker = process(world)
    world.claim(new, worker, room="alone")
    crash(world, worker)
    assert claim(world, new, room="alone").refusal == "busy"
    assert world.due() == []
    [(envelope, fence, _)] = world.poisoned()
    assert world.conclude(new, failed("system"), fence=fence, at=envelope) == "merged"


@pytest.mark.parametrize("room", ["alone", "apart"])
def test_a_loss_that_a_living_process_tells_is_the_attempts_own(world, new, room):
    """Of a process apart its worker saw the end; of itself a worker says that it does not work on the attempt any more."""
    for _ in range(MAX_LOST + 1):
        worker = process(world)
        world.claim(new, worker, room=room)
        world.pass_time(0.001)
        assert world.stores.leases.release_unowned(worker, (), 0.0) == {new.first.key}
        assert not [due for due in world.due() if due.why != "lost"]
    assert is_poisoned(world)


def test_losses_in_company_count_beside_those_of_its_own(world, new):
    """What is told of a suspect adds both; only its own fail it."""
    lose(world, new, SUSPECT_AFTER)
    lose(world, new, MAX_LOST, room="alone")
    lose(world, new, room="apart")
    assert not is_poisoned(world)
    assert claim(world, new).in_company == SUSPECT_AFTER + 1
    told = [event.data for event in world.events(new.first.ticket.run) if event.name == "attempt.lost"]
    assert [(each["losses"], each["losses_alone"]) for each in told] == [(1, 0), (2, 0), (3, 1), (4, 2), (5, 2)]


@pytest.mark.parametrize(("room", "own"), [("apart", 0), ("alone", 1)])
def test_an_adopted_attempt_is_in_the_room_it_was_claimed_for(world, new, room, own):
    worker = process(world)
    world.claim(new, worker, room=room)
    world.pass_time(LEASE_S + 1)
    world.register_worker("w1")
    assert world.stores.leases.register_worker(member(f"{worker}~2"), LEASE_S, old=worker, held=[new.first.key]) == {
        new.first.key
    }
    crash(world, f"{worker}~2")
    assert [due.why for due in world.due()] == ["lost"]
    [lost] = [event.data for event in world.events(new.first.ticket.run) if event.name == "attempt.lost"]
    assert lost["losses_alone"] == own


def test_a_claim_next_to_others_is_in_company_whatever_the_claim_before_was(world, new):
    fence = world.claim(new, process(world), room="alone")
    world.stores.plan_moves.park(ClaimId(new.first.key, fence), "no such code here")
    world.stores.plan_moves.unpark(new.first.ticket.run, "w")
    lose(world, new)
    [lost] = [event.data for event in world.events(new.first.ticket.run) if event.name == "attempt.lost"]
    assert lost["losses_alone"] == 0


def test_messages_are_counted_from_the_last_loss(world, new):
    """How long an unclaimed message is waited for doubles with each send; those before a claim say nothing of those after."""
    for _ in range(3):
        world.pass_time(200)
        world.register_worker("w1")
        world.due(heads={new.first.queue: None})
    lose(world, new)
    assert world.attempts(new.first.ticket.run)[0].sends == 1


def test_a_suspect_without_a_place_is_published_again_after_a_while(world, new):
    lose(world, new, SUSPECT_AFTER)
    world.stores.attempts.postpone(new.first.key, 3.0)
    assert world.due() == []
    world.pass_time(3.1)
    assert [due.why for due in world.due()] == ["ready"]


@pytest.mark.parametrize("status", ["running", "ready"])
def test_only_what_is_out_is_postponed(world, new, status):
    if status == "running":
        world.claim(new)
    before = world.picture(new.first.ticket.run)
    world.stores.attempts.postpone(new.first.key, 3.0)
    assert world.picture(new.first.ticket.run) == before
    world.stores.attempts.postpone("run_none::a:1", 3.0)
