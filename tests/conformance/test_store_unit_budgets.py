"""Requests of durable attempts under limits: set aside before each, settled with its answer, and none is asked that does not fit."""

from dataclasses import replace
from decimal import Decimal

import pytest
from test_store_units import ANSWER, again, claimed, recorded

from flujo_client.contract.outcome import Outcome, Usage
from flujo_worker.domain.budget import Amount, RequestHolds, Reservation
from flujo_worker.domain.units import SettledUnit
from tests.support.builders import SPENT, enqueued, failed, pipeline_of, succeeded

RUN = "run_unit_budgets"
SCOPE = f"run:{RUN}"
FIRST = Reservation(SCOPE, Amount(tokens=40), None, 100)
USED = Usage(20, 10, 1, 0.5)


@pytest.fixture
def new(world):
    limits = {"total_cost_usd_limit": None, "total_tokens_limit": 100}
    asked = {"run": RUN, "limits": limits, "tenant": "", "tenant_limits": None}
    return world.record(enqueued(pipeline_of("a", "b"), run_id=RUN, limits=asked))


def begun(world, new):
    """Return the unit of a claim that has reserved for its first request, and what it holds."""
    return claimed(world, new, to_reserve=[FIRST]), RequestHolds([FIRST])


def state(world):
    budget = world.budgets()[SCOPE]
    assert budget.overrun.usd == 0, "dollars are not limited"
    return budget.settled.tokens, budget.reserved.tokens, budget.overrun.tokens


def settle(world, unit, holds, usage=USED):
    assert world.stores.units.settle([SettledUnit(unit, ANSWER, usage, holds.end(unit, Amount.of(usage)))]) == {unit}


def test_requests_reserve_what_the_claim_has_not_and_settle_what_they_cost(world, new):
    unit, holds = begun(world, new)
    assert state(world) == (0, 40, 0)
    assert world.stores.units.reserve(unit, holds.begin(unit, Amount(tokens=30))) is None
    assert state(world) == (0, 40, 0)
    settle(world, unit, holds)
    assert state(world) == (30, 10, 0)
    second = replace(unit, name=unit.name._replace(nth=1))
    for _ in range(2):  # an answer that was lost
        assert world.stores.units.reserve(second, holds.begin(second, Amount(tokens=60))) is None
        assert state(world) == (30, 60, 0)
    settle(world, second, holds)
    assert state(world) == (60, 0, 0)
    assert world.conclude(new, succeeded(usage=SPENT), fence=unit.fence) == "merged"
    assert state(world) == (75, 0, 0)
    assert (world.run(RUN).tokens, world.budgets()[SCOPE].settled.usd) == (75, Decimal("1.25"))


def test_a_request_that_does_not_fit_is_not_announced(world, new):
    unit, holds = begun(world, new)
    world.stores.units.reserve(unit, holds.begin(unit, Amount(tokens=30)))
    settle(world, unit, holds)
    second = replace(unit, name=unit.name._replace(nth=1))
    over = world.stores.units.reserve(second, holds.begin(second, Amount(tokens=71)))
    assert over.message == (
        f"Insufficient quota: Token limit of 100 exceeded by an attempt that asks for 61: 30 spent, 10 reserved ({SCOPE})"
    )
    assert state(world) == (30, 10, 0)
    assert [each.name for each in recorded(world, unit)] == [unit.name]
    holds.end(second)
    assert world.conclude(new, Outcome("limit", fault=over), fence=unit.fence) == "merged"
    assert state(world) == (30, 0, 0)
    assert world.run(RUN).status == "failed"


def test_requests_at_once_reserve_together(world, new):
    unit, holds = begun(world, new)
    second = replace(unit, name=unit.name._replace(nth=1))
    assert world.stores.units.reserve(unit, holds.begin(unit, Amount(tokens=30))) is None
    assert world.stores.units.reserve(second, holds.begin(second, Amount(tokens=30))) is None
    assert state(world) == (0, 60, 0)
    settle(world, unit, holds)
    assert state(world) == (30, 30, 0)


def test_an_answer_that_passes_a_limit_fails_the_run(world, new):
    unit, holds = begun(world, new)
    world.stores.units.reserve(unit, holds.begin(unit, Amount(tokens=30)))
    settle(world, unit, holds, Usage(100, 20, 1))
    assert state(world) == (100, 0, 20)
    assert world.conclude(new, succeeded(), fence=unit.fence) == "stopped"
    assert world.run(RUN).reason == "Token limit of 100 exceeded. Current tokens: 120"


def test_a_claim_that_is_over_reserves_and_settles_nothing(world, new):
    unit, holds = begun(world, new)
    later = again(world, unit)
    before = state(world)
    assert world.stores.units.reserve(unit, holds.begin(unit, Amount(tokens=60))) is None
    assert world.stores.units.settle([SettledUnit(unit, ANSWER, USED, holds.end(unit, Amount.of(USED)))]) == set()
    assert (state(world), recorded(world, unit)) == (before, [])
    assert world.stores.units.reserve(later, RequestHolds([FIRST]).begin(later, Amount(tokens=50))) is None
    assert state(world) == (0, 50, 0)


def test_all_budgets_or_none(world, new):
    tenant = Reservation("tenant:acme:2026-01-01", Amount(Decimal("0.1")), Decimal("0.5"), None)
    unit = claimed(world, new, to_reserve=[FIRST, tenant])
    holds = RequestHolds([FIRST, tenant])
    over = world.stores.units.reserve(unit, holds.begin(unit, Amount(Decimal("0.6"), 50)))
    assert over.details["budget"] == "tenant"
    assert [(each.reserved.tokens, each.reserved.usd) for _, each in sorted(world.budgets().items())] == [
        (40, 0),
        (0, Decimal("0.1")),
    ]


@pytest.mark.parametrize("how", ["cancelled", "expired", "lost too often"])
def test_what_ends_without_its_worker_has_settled_what_it_paid_and_holds_nothing(world, new, how):
    unit, holds = begun(world, new)
    world.stores.units.reserve(unit, holds.begin(unit, Amount(tokens=30)))
    settle(world, unit, holds)
    second = replace(unit, name=unit.name._replace(nth=1))
    world.stores.units.reserve(second, holds.begin(second, Amount(tokens=60)))
    world.stores.leases.deregister_worker("w1")
    if how == "lost too often":
        fault = failed(retryable=False).fault
        assert world.conclude(new, Outcome("lost", fault=fault), fence=unit.fence) == "merged"
    else:
        assert world.request_cancel(RUN)
        assert world.stores.backlog.stop(RUN, how, "its time is over")
    assert state(world) == (30, 0, 0)
    assert world.run(RUN).tokens == 30
