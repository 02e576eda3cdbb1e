"""The units of durable attempts: under a live claim only, one answer each, and taken over from a claim that is over."""

from dataclasses import replace

from flujo_client.contract.outcome import Usage
from flujo_client.serial import Packed
from flujo_worker.domain.units import SettledUnit, Unit, UnitName
from tests.support.builders import enqueued

ANSWER, OTHER = Packed.of({"kind": "answer"}), Packed.of({"kind": "other"})
USAGE = Usage(7, 3, 1, 0.5, "openai:gpt-5")


def claimed(world):
    """Return a unit of a claimed attempt."""
    first = world.record(enqueued()).first
    claim = world.stores.attempts.claim(first.key, "w1", max_lost=2)
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
