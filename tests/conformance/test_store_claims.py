"""Claims: who may work on an attempt, under which fence, and each reason why not.

Like all of this folder: on a store in memory and on Postgres, behind one interface (M-401, C-34).
"""

from functools import partial

import pytest
from worlds import LEASE_S, MAX_LOST

from flujo_worker.domain.budget import Amount, Reservation
from flujo_worker.ports import Claim, ClaimId, PlanName
from tests.support.builders import decided, enqueued, failed, following, pipeline_of, succeeded


def test_a_claim_gives_the_fence_and_the_run_begins(world):
    new = world.record(enqueued())
    assert world.stores.attempts.claim(new.first.key, "w1", max_lost=MAX_LOST) == Claim(fence=1)
    [attempt] = world.attempts(new.first.ticket.run)
    assert (attempt.status, attempt.fence, attempt.worker) == ("running", 1, "w1")
    assert world.run(new.first.ticket.run).status == "running"


def test_a_message_that_is_marked_as_out_is_claimed_all_the_same(world):
    new = world.record(enqueued())
    world.stores.backlog.mark_sent({new.first.key: 0.0})
    assert world.claim(new) == 1


def test_unknown(world):
    assert world.refusal("run_none::a:1") == "unknown"


PLAN = PlanName("shapes:pipeline", enqueued().plan.fingerprint)


@pytest.mark.parametrize("is_limited", [False, True])
@pytest.mark.parametrize(
    ("other", "refusal"),
    [(PLAN._replace(reference="other:pipeline"), "mismatched"), (PLAN._replace(fingerprint="0" * 64), "moved")],
)
def test_a_message_that_names_another_pipeline_claims_nothing(world, other, refusal, is_limited):
    """M-014: a forged body does not run another pipeline under a key that there is; the real message continues."""
    new = world.record(enqueued())
    to_reserve = (Reservation("run:r", Amount(tokens=5), None, 100),) if is_limited else ()
    before = world.picture(new.first.ticket.run)
    ask = partial(world.stores.attempts.claim, new.first.key, "w1", max_lost=MAX_LOST, to_reserve=to_reserve)
    assert ask(plan=other) == Claim(refusal=refusal)
    assert world.picture(new.first.ticket.run) == before
    assert ask(plan=PLAN).fence == 1
    assert ask(plan=other).refusal == refusal


def test_ended(world):
    new = world.record(enqueued())
    world.conclude(new, succeeded(), fence=world.claim(new))
    assert world.refusal(new) == "ended"


def test_busy_while_another_live_worker_has_it(world):
    """A redelivered attempt that a live worker runs is refused (M-013)."""
    new = world.record(enqueued())
    world.register_worker("w2")
    world.claim(new)
    before = world.picture(new.first.ticket.run)
    assert world.refusal(new, "w2") == "busy"
    assert world.picture(new.first.ticket.run) == before


@pytest.mark.parametrize("end", ["never", "retired", "lapsed"])
def test_unleased(world, end):
    new = world.record(enqueued())
    if end != "never":
        world.register_worker("w2")
    if end == "retired":
        world.stores.leases.deregister_worker("w2")
    if end == "lapsed":
        world.pass_time(LEASE_S + 1)
    assert world.refusal(new, "w2") == "unleased"
    assert world.status(new) == "ready"


@pytest.mark.parametrize("held_by", [None, "w1"])
def test_stopped_once_a_cancel_was_asked(world, held_by):
    """Nothing is claimed after a cancel, not even by the worker that holds the attempt."""
    new = world.record(enqueued())
    if held_by:
        world.claim(new, held_by)
    world.request_cancel(new.first.ticket.run)
    assert world.stores.attempts.claim(new.first.key, "w1", max_lost=MAX_LOST) == Claim(refusal="stopped")


def test_stopped_past_the_deadline(world):
    new = world.record(enqueued(deadline=world.now() + 5))
    world.pass_time(6)
    assert world.refusal(new) == "stopped"


def test_parked(world):
    new = world.record(enqueued())
    world.stores.plan_moves.park(ClaimId(new.first.key, world.claim(new)), "no such code here")
    assert world.refusal(new) == "parked"


def test_an_attempt_that_was_cancelled_has_ended(world):
    new = world.record(enqueued())
    world.stores.backlog.stop(new.first.ticket.run, "cancelled", "enough")
    assert world.refusal(new) == "ended"


def test_who_claims_again_after_a_lost_answer_continues_under_its_own_fence(world):
    new = world.record(enqueued())
    fence = world.claim(new)
    assert world.stores.attempts.claim(new.first.key, "w1", max_lost=MAX_LOST) == Claim(fence=fence, refusal="busy")
    assert world.attempts(new.first.ticket.run)[0].fence == fence


def test_the_fence_grows_when_a_dead_workers_attempt_is_taken(world):
    new = world.record(enqueued())
    world.claim(new)
    world.pass_time(LEASE_S + 1)
    world.register_worker("w2")
    assert world.claim(new, "w2") == 2
    [attempt] = world.attempts(new.first.ticket.run)
    assert (attempt.number, attempt.worker) == (1, "w2")


def test_a_retired_workers_attempt_is_free_at_once(world):
    new = world.record(enqueued())
    world.claim(new)
    world.register_worker("w2")
    world.stores.leases.deregister_worker("w1")
    assert world.claim(new, "w2") == 2


def test_an_attempt_that_was_lost_alone_too_often_is_taken_no_more(world):
    new = world.record(enqueued())
    for name in "abc":
        world.register_worker(name)
        world.claim(new, name, room="alone")
        world.stores.leases.deregister_worker(name)
    assert world.refusal(new) == "busy"


def test_each_attempt_begins_with_a_fence_of_its_own(world):
    new = world.record(enqueued(pipeline_of(max_retries=3)))
    decision = decided(new, failed(), fence=world.claim(new))
    world.commit(decision)
    assert world.claim(following(decision)) == 1
