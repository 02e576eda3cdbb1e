"""Claims that a crash of Postgres lost: the next one has the same fence, and is distinguished from the first anyway (ADR 10)."""

from dataclasses import replace
from functools import partial

import pytest
from trees import FAN, fanning_out
from worlds import MAX_LOST

from flujo_client.contract.outcome import Fault, Usage
from flujo_worker.domain.budget import Amount, Reservation
from flujo_worker.domain.values import AttemptReport
from flujo_worker.ports import ClaimId
from tests.support.builders import decided, enqueued, following, pipeline_of, succeeded

RUN = "run_lost"
LIMITS = {"total_cost_usd_limit": None, "total_tokens_limit": 100}
RESERVATION = Reservation(f"run:{RUN}", Amount(tokens=40), None, 100)
LESS, MORE = Usage(input_tokens=7, requests=1), Usage(input_tokens=30, requests=1)


class Attempt:
    """An attempt of one kind of merge, and what two workers do with it."""

    def __init__(self, world, kind):
        self.world, self.kind = world, kind
        limits = {"run": RUN, "limits": LIMITS, "tenant": "", "tenant_limits": None}
        order = {"limits": limits} if kind == "limited" else {}
        self.new = world.record(enqueued(pipeline_of(FAN if kind == "tree" else "a", "b"), run_id=RUN, **order))

    def claim(self, worker):
        to_reserve = (RESERVATION,) if self.kind == "limited" else ()
        return self.world.stores.attempts.claim(self.new.first.key, worker, max_lost=MAX_LOST, to_reserve=to_reserve)

    def claim_and_lose(self, worker):
        claim = self.claim(worker)
        self.world.forget_claim(self.new.first.key)
        self.world.pass_time(0.1)
        return claim

    def conclude(self, claim, usage):
        outcome = succeeded(usage=usage)
        decision = fanning_out(self.new.first, 2) if self.kind == "tree" else decided(self.new, outcome)
        reserved = (RESERVATION,) if self.kind == "limited" else ()
        notice = AttemptReport(self.new.first, claim.fence, outcome, claim.claim_id, reserved)
        return self.world.commit(replace(decision, notice=notice))

    def tokens(self):
        """What was recorded for the attempt; if it is under limits its budget has settled as much."""
        [first] = [each for each in self.world.attempts(RUN) if each.key == self.new.first.key]
        if self.kind == "limited":
            assert self.world.budgets()[f"run:{RUN}"].settled.tokens == first.tokens
        return first.tokens


@pytest.fixture(params=["plain", "tree", "limited"])
def attempt(request, world):
    world.register_worker("w2")
    return Attempt(world, request.param)


def test_an_outcome_of_a_lost_claim_merges_nothing(world, attempt):
    """Law of design §3: the attempt is at work, under the same fence, and for another worker. What both have spent is recorded."""
    lost = attempt.claim_and_lose("w1")
    second = attempt.claim("w2")
    assert second.fence == lost.fence
    before = world.picture(RUN)
    assert attempt.conclude(lost, LESS) == "stale"
    assert world.picture(RUN) == before
    assert attempt.conclude(second, MORE) == "merged"
    assert attempt.tokens() == 37


def test_an_outcome_of_a_lost_claim_is_not_taken_for_the_one_that_was_merged(attempt):
    """Its input for the next step would be published, and that is not what was merged."""
    lost = attempt.claim_and_lose("w1")
    second = attempt.claim("w2")
    assert attempt.conclude(second, MORE) == "merged"
    assert attempt.conclude(lost, LESS) == "stale"
    assert attempt.conclude(second, MORE) == "repeated"
    assert attempt.tokens() == 37


def test_what_a_lost_claim_has_spent_is_booked_before_there_is_another_one(attempt):
    """A failover has lost its reservation, and the row of the budget; the next claim reserves as ever."""
    lost = attempt.claim_and_lose("w1")
    for _ in range(2):
        assert attempt.conclude(lost, LESS) == "stale"
    assert attempt.tokens() == 7
    second = attempt.claim("w2")
    assert attempt.conclude(lost, LESS) == "stale"
    assert attempt.conclude(second, MORE) == "merged"
    assert attempt.tokens() == 37
    assert {each.reserved for each in attempt.world.budgets().values()} <= {Amount()}


def test_a_message_of_a_lost_merge_is_not_merged_into_what_another_claim_has_made(world):
    """It outlives a failover in the broker; the step before it ran again, and its output is another one."""
    new = world.record(enqueued(pipeline_of("a", "b"), run_id=RUN))
    messages = []
    for output in ("lost", "kept"):
        claim = world.stores.attempts.claim(new.first.key, "w1", max_lost=MAX_LOST)
        decision = decided(new, succeeded(output), fence=claim.fence, claim_id=claim.claim_id)
        messages.append(following(decision))
        if output == "lost":
            world.forget_claim(new.first.key)
    assert world.commit(decision) == "merged"
    lost, kept = messages
    claim = world.stores.attempts.claim(lost.key, "w1", max_lost=MAX_LOST)
    after = partial(decided, new, succeeded("end"), fence=claim.fence, claim_id=claim.claim_id)
    assert world.commit(after(at=lost)) == "stale"
    assert world.commit(after(at=kept)) == "merged"


def test_a_lost_claim_breaks_off_no_run(world, attempt):
    """Its worker may not find what it had read: a failover to a lagging replica has lost that too."""
    fault, key = Fault("system", "Unreadable", "no", "no"), attempt.new.first.key
    lost = attempt.claim_and_lose("w1")
    second = attempt.claim("w2")
    assert second.fence == lost.fence
    break_off = partial(world.stores.attempts.break_off, RUN, fault)
    assert not break_off(at=ClaimId(key, lost.fence, lost.claim_id))
    assert break_off(at=ClaimId(key, second.fence, second.claim_id))


def test_a_worker_that_lost_its_claim_may_have_the_next_one(attempt):
    """The same worker and the same fence, and what it spent under each is recorded once."""
    lost = attempt.claim_and_lose("w1")
    for _ in range(2):  # the first answer was lost
        assert attempt.conclude(lost, LESS) == "stale"
    again = attempt.claim("w1")
    assert attempt.conclude(lost, LESS) == "stale"
    assert attempt.conclude(again, MORE) == "merged"
    assert attempt.tokens() == 37


def test_a_claim_whose_answer_was_lost_is_merged(attempt):
    """Asked again it is refused as busy, and tells under what the worker continues."""
    attempt.claim("w1")
    again = attempt.claim("w1")
    assert again.refusal == "busy"
    assert attempt.conclude(again, MORE) == "merged"


def test_a_lost_worker_is_told_from_the_next_by_its_fence_too(world, attempt):
    """Two claims of one moment, and of those from before claims were distinguished by it."""
    lost = attempt.claim("w1")
    world.stores.leases.deregister_worker("w1")
    second = attempt.claim("w2")
    assert second.fence == lost.fence + 1
    assert attempt.conclude(replace(lost, claim_id=None), LESS) == "stale"
    assert attempt.conclude(replace(lost, claim_id=second.claim_id), LESS) == "stale"
    assert attempt.conclude(second, MORE) == "merged"
