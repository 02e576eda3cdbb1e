"""The units of durable attempts: under a live claim only, one answer each, and taken over from a claim that is over."""

from dataclasses import replace

import pytest
from worlds import MAX_LOST

from flujo_client.contract.outcome import NO_USAGE, Outcome, Usage
from flujo_client.serial import Packed
from flujo_worker.domain.units import SettledUnit, Unit, UnitName
from flujo_worker.ports import ClaimId
from tests.support.builders import SPENT, enqueued, failed, succeeded

ANSWER, OTHER = Packed.of({"kind": "answer"}), Packed.of({"kind": "other"})
USAGE = Usage(7, 3, 1, 0.5, "openai:gpt-5")


def claimed(world, new=None, **terms):
    """Return a unit of a claimed attempt."""
    first = (new or world.record(enqueued())).first
    claim = world.stores.attempts.claim(first.key, "w1", max_lost=2, **terms)
    name = UnitName(f"{first.address}:{first.step}:1", b"0123456789abcdef", 0)
    return Unit(first.ticket.run, name, first.key, claim.fence, claim.claim_id, "agent__model.request")


def again(world, unit):
    """Lose the claim, and claim the attempt anew."""
    world.stores.leases.deregister_worker("w1")
    world.register_worker("w2")
    claim = world.stores.attempts.claim(unit.key, "w2", max_lost=2)
    return replace(unit, fence=claim.fence, claim_id=claim.claim_id)


def recorded(world, unit):
    return world.stores.units.recorded(unit.run, [unit.name.place])


def test_a_unit_is_announced_and_settled(world):
    unit, store = claimed(world), world.stores.units
    assert store.begin([unit]) == {unit}
    [begun] = recorded(world, unit)
    assert (begun.name, begun.operation, begun.answer, begun.tries) == (unit.name, unit.operation, None, 1)
    assert store.settle([SettledUnit(unit, ANSWER, USAGE)]) == {unit}
    [settled] = recorded(world, unit)
    assert (settled.answer, settled.usage, settled.tries, settled.claim_id) == (ANSWER, USAGE, 1, unit.claim_id)


def test_the_first_answer_stays_and_an_announcement_after_it_changes_nothing(world):
    unit, store = claimed(world), world.stores.units
    assert store.settle([SettledUnit(unit, ANSWER)]) == {unit}
    assert store.settle([SettledUnit(unit, OTHER)]) == set()
    assert store.begin([unit]) == set()
    assert [each.answer for each in recorded(world, unit)] == [ANSWER]


def test_a_later_claim_takes_over_what_has_no_answer(world):
    unit, store = claimed(world), world.stores.units
    answered = replace(unit, name=unit.name._replace(nth=1))
    store.begin([unit, answered])
    store.settle([SettledUnit(answered, ANSWER)])
    later = again(world, unit)
    assert store.begin([later, replace(later, name=answered.name)]) == {later}
    assert store.settle([SettledUnit(unit, OTHER)]) == set()
    assert store.settle([SettledUnit(later, ANSWER)]) == {later}
    assert {each.name.nth: (each.tries, each.answer) for each in recorded(world, unit)} == {
        0: (2, ANSWER),
        1: (1, ANSWER),
    }


def test_a_claim_that_is_over_writes_nothing(world):
    unit, store = claimed(world), world.stores.units
    again(world, unit)
    assert store.begin([unit]) == set()
    assert store.settle([SettledUnit(unit, ANSWER)]) == set()
    assert recorded(world, unit) == []


def test_places_and_runs_are_told_apart(world):
    unit, store = claimed(world), world.stores.units
    elsewhere = replace(unit, name=unit.name._replace(place="other:1"), effect="once")
    assert store.begin([unit, elsewhere]) == {unit, elsewhere}
    assert [each.effect for each in store.recorded(unit.run, ["other:1"])] == ["once"]
    assert len(store.recorded(unit.run, ["other:1", unit.name.place])) == 2
    assert store.recorded("another", ["other:1"]) == []


def end(world, new, unit, how):
    """Bring an attempt with a settled unit to an end; return what it has spent beside that unit."""
    stores, claim = world.stores, ClaimId(unit.key, unit.fence, unit.claim_id)
    match how:
        case "merged":
            assert world.conclude(new, succeeded(usage=SPENT), fence=unit.fence) == "merged"
        case "failed, and another attempt":
            assert world.conclude(new, failed(), fence=unit.fence) == "merged"
        case "handed back":
            for _ in range(2):  # an answer that was lost is asked for again
                stores.attempts.spend(unit.run, claim, SPENT)
            assert stores.leases.hand_back("w1", [unit.key]) == {unit.key}
        case "taken over":
            later = replace(again(world, unit), name=unit.name._replace(nth=1))
            assert stores.units.settle([SettledUnit(unit, OTHER, USAGE), SettledUnit(later, ANSWER, SPENT)]) == {later}
            assert world.conclude(new, succeeded(), fence=later.fence) == "merged"
        case "lost too often":
            world.stores.leases.deregister_worker("w1")
            assert world.conclude(new, Outcome("lost", fault=failed().fault), fence=unit.fence) == "merged"
            return NO_USAGE
        case "cancelled while its worker was dead":
            world.stores.leases.deregister_worker("w1")
            assert world.request_cancel(unit.run)
            assert stores.backlog.stop(unit.run, "cancelled", "asked for")
            return NO_USAGE
    return SPENT


@pytest.mark.parametrize(
    "how",
    [
        "merged",
        "failed, and another attempt",
        "handed back",
        "taken over",
        "lost too often",
        "cancelled while its worker was dead",
    ],
)
def test_whatever_an_attempt_ends_in_its_answers_are_booked_once(world, how):
    """Whichever claim has asked them, and whether or not a later one reads them."""
    new = world.record(enqueued())
    unit = claimed(world, new)
    for _ in range(2):
        world.stores.units.settle([SettledUnit(unit, ANSWER, USAGE)])
    total = USAGE + end(world, new, unit, how)
    assert (world.run(unit.run).tokens, world.run(unit.run).cost_usd) == (
        total.input_tokens + total.output_tokens,
        total.cost_usd,
    )
    assert [(each.tokens, each.cost_usd) for each in world.attempts(unit.run)][:1] == [
        (total.input_tokens + total.output_tokens, total.cost_usd)
    ]


def test_the_answers_of_one_claim_add_up(world):
    unit, store = claimed(world), world.stores.units
    units = [replace(unit, name=unit.name._replace(nth=nth)) for nth in range(3)]
    store.settle([SettledUnit(each, ANSWER, USAGE) for each in units[:2]])
    store.settle([SettledUnit(each, ANSWER, replace(USAGE, model="other:model")) for each in units[1:]])
    assert world.run(unit.run).tokens == 3 * 10
    assert world.models() == [None]


@pytest.mark.parametrize("makes_progress", [True, False])
def test_losses_that_were_followed_by_an_answer_do_not_count(world, makes_progress):
    new = world.record(enqueued())
    for number in range(2 * MAX_LOST):
        world.register_worker(f"p{number}")
        claim = world.stores.attempts.claim(new.first.key, f"p{number}", max_lost=MAX_LOST, room="alone")
        if claim.fence is None:
            break
        name = UnitName(f"{new.first.address}:{new.first.step}:1", b"0123456789abcdef", number)
        unit = Unit(new.first.ticket.run, name, new.first.key, claim.fence, claim.claim_id, "agent__model.request")
        if makes_progress:
            assert world.stores.units.settle([SettledUnit(unit, ANSWER)]) == {unit}
        world.stores.leases.deregister_worker(f"p{number}")
    assert bool(world.poisoned()) is not makes_progress
