"""Budgets under real concurrency: claims, outcomes, late outcomes and cancels on the same rows; never above a limit, never a deadlock."""

from decimal import Decimal

import pytest
from worlds import MAX_LOST, ROUNDS, World

from flujo_client.contract.outcome import Event
from flujo_worker.domain.budget import Amount, Reservation
from flujo_worker.ports import ClaimId
from tests.support.builders import SPENT, decided, enqueued, pipeline_of, succeeded

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("no_deadlock")]

TOKENS = SPENT.input_tokens + SPENT.output_tokens
SCOPES = ("run:shared", "step:shared:a", "tenant:acme:2026-01-01")
WATCH = """
CREATE TABLE IF NOT EXISTS watched (counted bigint, most bigint);
TRUNCATE watched;
CREATE OR REPLACE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO watched VALUES (new.settled_tokens + new.reserved_tokens, new.limit_tokens); RETURN new; END $$;
CREATE OR REPLACE TRIGGER watch AFTER INSERT OR UPDATE ON flujo_budgets FOR EACH ROW EXECUTE FUNCTION watch();
"""


@pytest.fixture(params=["postgres", "postgres_in_groups"])
def world(request):
    setting = request.getfixturevalue(request.param)
    setting.empty()
    setting.execute(WATCH)
    yield World(setting)
    setting.execute("DROP TRIGGER watch ON flujo_budgets")


def limited(world, name):
    in_force = {"run": name, "limits": None, "tenant": "", "tenant_limits": None}
    return world.record(enqueued(pipeline_of("a", "b"), run_id=name, limits=in_force))


def to_reserve(most):
    reserved = Amount(Decimal("0.25"), TOKENS)
    return [Reservation(scope, reserved, Decimal(100), most) for scope in SCOPES]


def test_whatever_races_no_one_has_more_than_the_limit(world, race, postgres):
    """M-435, law 7: eight claim what five may have, in either order of their budgets; some conclude, some are cancelled meanwhile."""
    for number in range(2 * ROUNDS):  # each of the eight leads once
        world.register_worker("w1")  # a slow machine takes longer than one lease for all rounds
        for table in ("budgets", "reservations"):
            postgres.rows(f"DELETE FROM flujo_{table} WHERE true RETURNING 1")
        runs = [limited(world, f"run_{number}_{each}") for each in range(8)]
        wanted = to_reserve(5 * TOKENS)

        def carry_out(new, place, wanted=wanted):
            mine = wanted if place % 2 else wanted[::-1]
            claim = world.stores.attempts.claim(new.first.key, "w1", max_lost=MAX_LOST, to_reserve=mine)
            if claim.over is not None:
                return False
            if place % 3 == 0:
                world.stores.backlog.stop(new.first.ticket.run, "cancelled", "enough")
            world.conclude(new, succeeded(usage=SPENT), fence=claim.fence)
            return True

        granted = race(*(lambda new=new, place=place: carry_out(new, place) for place, new in enumerate(runs)))
        # A cancel gives back before its late outcome is booked: then another may have had it, and the late one is overrun.
        assert sum(granted) >= 5
        for budget in world.budgets().values():
            assert budget.reserved == Amount()
            assert budget.spent.tokens == sum(granted) * TOKENS
    [most] = postgres.rows("SELECT count(*) AS versions, bool_and(counted <= most) AS held FROM watched")
    assert most["versions"] > ROUNDS
    assert most["held"]


def test_what_is_put_off_gives_back_once_whoever_else_does(world, race):
    """M-044: two say so at once, others claim, and cancels give back too."""
    event = Event("flujo.breaker.waiting", {}, "warning")
    for number in range(ROUNDS):
        runs = [limited(world, f"put_off_{number}_{each}") for each in range(4)]
        fences = [
            world.stores.attempts.claim(
                new.first.key, "w1", max_lost=MAX_LOST, to_reserve=to_reserve(100 * TOKENS)
            ).fence
            for new in runs
        ]

        def give_back(place, runs=runs, fences=fences):
            key = runs[place].first.key
            if world.stores.attempts.defer(ClaimId(key, fences[place]), 0.0, event) and place % 2:
                claim = world.stores.attempts.claim(key, "w1", max_lost=MAX_LOST, to_reserve=to_reserve(100 * TOKENS))
                world.stores.attempts.defer(ClaimId(key, claim.fence or 0), 0.0, event)

        stops = [
            lambda new=new: world.stores.backlog.stop(new.first.ticket.run, "cancelled", "enough") for new in runs[:2]
        ]
        race(*(lambda place=place: give_back(place % 4) for place in range(6)), *stops)
        assert {budget.reserved for budget in world.budgets().values()} == {Amount()}


def test_two_deliveries_reserve_and_settle_once(world, race):
    """M-013: of one attempt, on two workers."""
    world.register_worker("w2")
    for number in range(ROUNDS):
        new = limited(world, f"twice_{number}")
        wanted = [Reservation(f"run:twice_{number}", Amount(tokens=TOKENS), None, 100)]

        def deliver(worker, new=new, wanted=wanted):
            claim = world.stores.attempts.claim(new.first.key, worker, max_lost=MAX_LOST, to_reserve=wanted)
            if claim.fence is None:
                return claim.refusal
            return world.stores.attempts.commit(decided(new, succeeded(usage=SPENT), fence=claim.fence)).verdict

        assert sorted(race(lambda: deliver("w1"), lambda: deliver("w2"))) in (["busy", "merged"], ["ended", "merged"])
        budget = world.budgets()[f"run:twice_{number}"]
        assert (budget.settled.tokens, budget.reserved, budget.overrun) == (TOKENS, Amount(), Amount())
