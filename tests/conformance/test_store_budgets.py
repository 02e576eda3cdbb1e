"""Budgets: all of a reservation or nothing, settled once, and a run that has passed a limit fails (SYS-18, C-10)."""

from decimal import Decimal

import pytest
from worlds import LEASE_S, MAX_LOST

from flujo_client.contract.outcome import Outcome, Usage
from flujo_worker.domain.budget import Amount, Reservation
from flujo_worker.ports import ClaimId
from tests.support.builders import SPENT, decided, enqueued, failed, following, member, pipeline_of, succeeded

RUN = "run_budgets"
TOKENS = SPENT.input_tokens + SPENT.output_tokens
NOTHING = Amount()


def limited(*names, run=RUN, tokens=100, usd=None, tenant=None):
    limits = {"total_cost_usd_limit": usd, "total_tokens_limit": tokens}
    asked = {"run": run, "limits": limits, "tenant": tenant or "", "tenant_limits": None}
    return enqueued(pipeline_of(*names), run_id=run, limits=asked)


def to_reserve(tokens=0, usd="0", *, scope=f"run:{RUN}", most=100, most_usd=None):
    return Reservation(scope, Amount(Decimal(usd), tokens), None if most_usd is None else Decimal(most_usd), most)


def claimed(world, at, *reservations, worker="w1"):
    key = at.first.key if hasattr(at, "first") else at.key
    return world.stores.attempts.claim(key, worker, max_lost=MAX_LOST, to_reserve=reservations)


def budget(world, scope=f"run:{RUN}"):
    return world.budgets()[scope]


def test_a_claim_reserves_and_its_outcome_settles(world):
    """M-044: reserved before the call, what was spent after it."""
    new = world.record(limited("a", "b"))
    assert claimed(world, new, to_reserve(40)).over is None
    assert budget(world).reserved == Amount(tokens=40)
    world.conclude(new, succeeded(usage=SPENT))
    assert (budget(world).settled.tokens, budget(world).reserved) == (TOKENS, NOTHING)


def test_what_does_not_fit_is_claimed_and_reserves_nothing(world):
    """M-435: all of it or nothing, and the text names limit and figures (§2.11)."""
    new = world.record(limited())
    answer = claimed(world, new, to_reserve(40), to_reserve(40, scope="tenant:acme:2026-01-01", most=39))
    assert (answer.fence, answer.over.category, answer.over.type_name) == (1, "limit", "UsageLimitExceededError")
    assert answer.over.message.startswith(
        "Insufficient quota: Token limit of 39 exceeded by an attempt that asks for 40"
    )
    assert [each.reserved for each in world.budgets().values()] == [NOTHING, NOTHING]


def quota_of(attempt):
    return (
        attempt.quota_before_usd,
        attempt.quota_before_tokens,
        attempt.estimate_cost_usd,
        attempt.estimate_tokens,
    )


def test_an_attempt_is_read_with_what_it_found_and_reserved(world):
    """Requirements §2.9: of several budgets the least that was left; an attempt that was refused too, and what waits says nothing."""
    new = world.record(limited("a", "b", usd=1.0))
    at = new.first
    for most in (70, 10):
        claimed(
            world,
            at,
            to_reserve(40, "0.25", most_usd="1"),
            to_reserve(40, "0.25", scope="tenant:acme:2026-01-01", most=most),
        )
        if most == 70:
            decision = decided(new, succeeded(usage=SPENT), at=at)
            world.commit(decision)
            at = following(decision)
    first, second = world.attempts(RUN)
    assert quota_of(first) == (1.0, 70, 0.25, 40)
    assert quota_of(second) == (0.75, 70 - TOKENS, 0.25, 40)
    assert (first.tokens, world.run(RUN).limits["total_tokens_limit"]) == (TOKENS, 100)


def test_a_refused_attempt_is_read_with_what_it_found(world):
    new = world.record(limited())
    assert claimed(world, new, to_reserve(40, most=39)).over is not None
    assert quota_of(world.attempts(RUN)[0]) == (None, 39, 0.0, 40)
    world.record(enqueued(run_id="run_free"))
    assert quota_of(world.attempts("run_free")[0]) == (None, None, None, None)
    assert world.run("run_free").limits is None


def test_what_attempts_have_spent_lately_is_read_by_pipeline(world):
    """Requirements §2.7, historical estimates: of the latest runs alone, each attempt over all its fences, the latest first."""
    runs = []
    for number in range(3):
        world.pass_time(1)
        new = world.record(enqueued(pipeline_of("a"), run_id=f"run_{number}"))
        world.claim(new)
        world.stores.attempts.spend(f"run_{number}", ClaimId(new.first.key, 9), Usage(1, 1, 1, 0.5))
        world.conclude(new, succeeded(usage=SPENT))
        runs.append(new)
    both = Usage(SPENT.input_tokens + 1, SPENT.output_tokens + 1, SPENT.requests + 1, SPENT.cost_usd + 0.5)
    assert world.stores.attempts.spent_lately("shapes:pipeline", 2) == [
        (runs[2].first.key, both),
        (runs[1].first.key, both),
    ]
    assert world.stores.attempts.spent_lately("other:pipeline", 2) == []


def test_dollars_add_up_to_the_last_digit(world):
    """M-435: three times 0.1 are 0.3."""
    new = world.record(limited("a", "b", "c", tokens=None, usd=0.3))
    at = new.first
    for name in "abc":
        assert claimed(world, at, to_reserve(usd="0.1", most=None, most_usd="0.3")).over is None, name
        decision = decided(new, succeeded(usage=Usage(cost_usd=0.1)), at=at)
        world.commit(decision)
        at = following(decision) if name != "c" else at
    assert budget(world).settled.usd == Decimal("0.3")
    assert budget(world).overrun == NOTHING


def test_a_redelivery_continues_with_what_is_held(world):
    """M-013: a lost worker's reservation stays, for no one knows what was spent, and is not asked for again."""
    new = world.record(limited())
    claimed(world, new, to_reserve(60))
    world.pass_time(LEASE_S + 1)
    world.register_worker("w2")
    assert claimed(world, new, to_reserve(60), worker="w2").over is None
    assert budget(world).reserved.tokens == 60


def test_what_is_handed_back_keeps_its_reservation_too(world):
    """It may have spent some of it."""
    new = world.record(limited())
    claimed(world, new, to_reserve(60))
    world.stores.leases.hand_back("w1", [new.first.key])
    assert budget(world).reserved.tokens == 60
    assert claimed(world, new, to_reserve(60)).over is None
    assert budget(world).reserved.tokens == 60


def test_a_late_outcome_is_booked_once_and_frees_nothing_of_the_new_claim(world):
    """M-013: the zombie's call cost money too."""
    new = world.record(limited())
    claimed(world, new, to_reserve(60))
    world.pass_time(LEASE_S + 1)
    world.register_worker("w2")
    claimed(world, new, to_reserve(60), worker="w2")
    for _ in range(2):
        assert world.conclude(new, succeeded(usage=SPENT), fence=1) == "stale"
    assert (budget(world).settled.tokens, budget(world).reserved.tokens) == (TOKENS, 60)
    world.conclude(new, succeeded(usage=SPENT), fence=2)
    assert (budget(world).settled.tokens, budget(world).reserved) == (2 * TOKENS, NOTHING)


def test_a_repeated_outcome_settles_once(world):
    """Law 1."""
    new = world.record(limited("a", "b"))
    claimed(world, new, to_reserve(60))
    for verdict in ("merged", "repeated"):
        assert world.conclude(new, succeeded(usage=SPENT)) == verdict
    assert (budget(world).settled.tokens, budget(world).reserved) == (TOKENS, NOTHING)


def test_each_try_reserves_for_itself(world):
    """C-37: what failed tries spent counts."""
    new = world.record(limited())
    claimed(world, new, to_reserve(60))
    decision = decided(new, failed())
    world.commit(decision)
    claimed(world, following(decision), to_reserve(60))
    assert (budget(world).settled.tokens, budget(world).reserved.tokens) == (TOKENS, 60)


def test_a_cancel_gives_back_what_is_held_and_books_what_comes_late(world):
    new = world.record(limited())
    claimed(world, new, to_reserve(60))
    world.request_cancel(RUN)
    world.stores.backlog.stop(RUN, "cancelled", "asked")
    assert budget(world).reserved == NOTHING
    assert world.conclude(new, succeeded(usage=SPENT)) == "stopped"
    assert budget(world).settled.tokens == TOKENS


def test_a_lost_attempt_keeps_its_reservation_until_its_run_ends(world):
    """No one knows what it spent; the run's end frees it (design §5)."""
    new = world.record(limited())
    claimed(world, new, to_reserve(60))
    world.conclude(new, Outcome("lost", fault=failed().fault))
    assert world.run(RUN).status == "failed"
    assert budget(world).reserved == NOTHING


@pytest.mark.parametrize("names", [("a", "b"), ("a",)], ids=["goes on", "was its last"])
def test_a_limit_that_is_passed_fails_the_run(world, names):
    """M-430, C-10: the step is merged with its cost; what it spent beyond the limit is overrun, and the run has failed."""
    new = world.record(limited(*names, tokens=10))
    claimed(world, new, to_reserve(most=10))
    committed = world.stores.attempts.commit(decided(new, succeeded(usage=SPENT)))
    assert committed.verdict == "merged"
    assert committed.breach.message == f"Token limit of 10 exceeded. Current tokens: {TOKENS}"
    assert (budget(world).settled.tokens, budget(world).overrun.tokens) == (10, TOKENS - 10)
    if len(names) > 1:
        assert world.stores.backlog.runs_to_stop(10) == [(RUN, "failed")]
        assert world.stores.backlog.stop(RUN, "failed", committed.breach.message)
    run = world.run(RUN)
    spent = {"budget": "run", "unit": "tokens", "limit": 10, "spent": TOKENS, "spender": "a"}
    assert run.error.details == committed.breach.details == spent
    assert (run.status, run.error.type_name, run.reason) == (
        "failed",
        "UsageLimitExceededError",
        committed.breach.message,
    )
    assert next(each.status for each in world.attempts(RUN)) == "succeeded"
    told = [event.name for event in world.events(RUN)]
    assert ("flujo.budget.violation" in told, told.count("run.failed"), "run.succeeded" in told) == (True, 1, False)


def test_a_limit_that_is_passed_because_of_what_others_have_reserved_says_so(world):
    """Less than the limit is spent: without the reservation nobody could see why the run has failed."""
    scope = "tenant:acme:2026-01-01"
    first, second = (world.record(limited("a", "b", run=name)) for name in ("run_one", "run_two"))
    assert claimed(world, first, to_reserve(95, scope=scope)).over is None
    assert claimed(world, second, to_reserve(5, scope=scope)).over is None
    breach = world.stores.attempts.commit(decided(second, succeeded(usage=SPENT))).breach
    assert breach.message == f"Token limit of 100 exceeded. Current tokens: {TOKENS}, and 95 reserved"
    assert (breach.details["spent"], breach.details["reserved"], breach.details["spender"]) == (TOKENS, 95, "a")


def test_a_budget_is_shared_by_runs(world):
    """A tenant's day holds for all its runs, and a limit that one of them began it with stays."""
    scope = "tenant:acme:2026-01-01"
    first, second = (world.record(limited(run=name, tokens=None)) for name in ("run_one", "run_two"))
    assert claimed(world, first, to_reserve(60, scope=scope)).over is None
    refused = claimed(world, second, to_reserve(60, scope=scope, most=1000)).over
    assert "60 reserved" in refused.message
    named = {"budget": "tenant", "name": "acme", "day": "2026-01-01", "unit": "tokens"}
    assert refused.details == {**named, "limit": 100, "spent": 0, "asked": 60, "reserved": 60}


def test_runs_without_limits_touch_no_budget(world):
    new = world.record(enqueued())
    world.claim(new)
    world.conclude(new, succeeded(usage=SPENT))
    assert world.budgets() == {}


def test_a_claim_whose_answer_was_lost_says_the_same_again(world):
    """The holder asks again: what it holds is granted, what it was refused is refused."""
    new = world.record(limited())
    claimed(world, new, to_reserve(60))
    assert claimed(world, new, to_reserve(60)).over is None
    assert budget(world).reserved.tokens == 60
    other = world.record(limited(run="run_other"))
    claimed(world, other, to_reserve(60))
    assert claimed(world, other, to_reserve(60)).over is not None


def test_a_refused_claim_ends_its_attempt(world):
    """A refused claim is concluded as limit: the attempt ends, nothing is tried again, the run fails as such."""
    new = world.record(limited())
    world.stores.leases.register_worker(member("w3"), LEASE_S)
    answer = claimed(world, new, to_reserve(101), worker="w3")
    world.conclude(new, Outcome("limit", fault=answer.over))
    [attempt] = world.attempts(RUN)
    assert (attempt.status, attempt.reason, world.run(RUN).error.category) == ("failed", "limit", "limit")
