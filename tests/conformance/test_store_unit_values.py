"""The values of units: stored apart if they are large, and deleted once their step has ended."""

from dataclasses import replace

from test_store_units import ANSWER, USAGE, again, claimed, recorded

from flujo_client.contract.outcome import NO_USAGE
from flujo_client.serial import Packed
from flujo_worker.domain.units import SettledUnit, Unit, UnitName
from tests.support.builders import enqueued, failed, pipeline_of, succeeded

DAY_S = 86_400.0


def test_who_asks_and_the_parts_of_a_request_are_recorded(world):
    unit, store = claimed(world), world.stores.units
    asked = Packed.of(["asker", "message 1: abcd"])
    unit = replace(unit, asked=asked)
    other = replace(unit, name=unit.name._replace(nth=1))
    store.begin([unit])
    store.settle([SettledUnit(other, ANSWER)])
    assert [each.asked for each in recorded(world, unit)] == [asked, asked]


def prune(world, older_s=60.0, after=("", ""), places=10, units=10):
    return world.stores.retention.prune_units(older_s, after, places=places, units=units)


def ended(world, *, count=2):
    """Return units of a step that has just ended."""
    new = world.record(enqueued())
    first = new.first
    claim = world.stores.attempts.claim(first.key, "w1", max_lost=2)
    names = [UnitName(f"{first.address}:{first.step}:1", b"0123456789abcdef", n) for n in range(count)]
    units = [Unit(first.ticket.run, name, first.key, claim.fence, claim.claim_id, "tool") for name in names]
    world.stores.units.settle([SettledUnit(unit, ANSWER) for unit in units])
    assert world.conclude(new, succeeded()) == "merged"
    return units


def test_units_go_once_their_step_has_ended_for_a_while(world):
    world.register_worker("w1", lease_s=1e6)
    unit = claimed(world)
    world.stores.units.begin([unit])
    first, _ = ended(world)
    assert prune(world) == (0, None)
    world.pass_time(61.0)
    assert prune(world, older_s=120.0) == (0, None)
    assert prune(world) == (2, None)
    assert recorded(world, first) == []
    assert len(recorded(world, unit)) == 1


def test_units_stay_while_their_step_may_be_tried_again(world):
    new = world.record(enqueued(pipeline_of("a", max_retries=1)))
    claim = world.stores.attempts.claim(new.first.key, "w1", max_lost=2)
    name = UnitName(f"{new.first.address}:{new.first.step}:1", b"0123456789abcdef", 0)
    unit = Unit(new.first.ticket.run, name, new.first.key, claim.fence, claim.claim_id, "tool")
    assert world.stores.units.settle([SettledUnit(unit, ANSWER)]) == {unit}
    world.conclude(new, failed())
    world.pass_time(3600.0)
    assert [each.status for each in world.attempts(new.first.ticket.run)] == ["failed", "ready"]
    assert prune(world) == (0, None)


def test_of_what_was_possibly_paid_twice_only_the_values_go(world):
    world.register_worker("w1", "w2", lease_s=1e6)
    new = world.record(enqueued())
    unit = claimed(world, new)
    world.stores.units.begin([unit, replace(unit, name=unit.name._replace(nth=1))])
    later = again(world, unit)
    world.stores.units.settle([SettledUnit(later, ANSWER, USAGE)])
    assert world.conclude(new, succeeded(), fence=later.fence) == "merged"
    world.pass_time(61.0)
    prune(world)
    assert prune(world) == (0, None)
    assert {(each.name.nth, each.tries, each.answer, each.usage) for each in recorded(world, unit)} == {
        (0, 2, None, USAGE),
        (1, 1, None, NO_USAGE),
    }


def test_places_are_looked_at_in_their_order_a_few_at_a_time(world):
    ran = [ended(world)[0].run for _ in range(3)]
    world.pass_time(61.0)
    seen, after, gone = 0, ("", ""), 0
    while after is not None:
        pruned = prune(world, after=after, places=1, units=10)
        seen, gone, after = seen + 1, gone + pruned.gone, pruned.after
    assert (seen, gone) == (4, 6)
    assert prune(world, units=3) == (0, None)
    assert len(ran) == 3


def test_no_more_are_deleted_than_asked_for(world):
    ended(world, count=5)
    world.pass_time(61.0)
    assert [prune(world, units=2).gone for _ in range(4)] == [2, 2, 1, 0]


def test_a_large_answer_stays_with_its_unit_and_goes_with_it(world):
    world.register_worker("w1", lease_s=1e6)
    unit, large = claimed(world), Packed.of(["a large answer"] * 20)
    world.stores.blobs.store([large])
    world.stores.units.settle([SettledUnit(unit, large.reference())])
    for _ in range(2):
        world.pass_time(2 * DAY_S)
        while world.stores.retention.sweep_blobs(100, every_s=0.5, unused_s=DAY_S):
            pass
    assert world.stores.blobs.fetch([large.digest]) == {large.digest: large}
