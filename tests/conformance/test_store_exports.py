"""What traces are exported from: everything that ended, once and in order, for one exporter at a time."""

from datetime import timedelta

from flujo_client.contract.outcome import Event, Usage
from flujo_client.serial import Packed
from flujo_worker.domain.units import SettledUnit, Unit, UnitName
from tests.support.builders import decided, enqueued, failed, following, pipeline_of, succeeded

TURN = {"patience_s": 60.0, "margin_s": 0.0}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def perform(world, new, outcome, *, at=None):
    """Claim and merge an attempt; return what follows."""
    first = at or new.first
    claim = world.stores.attempts.claim(first.key, "w1", max_lost=2)
    decision = decided(new, outcome, at=first, fence=claim.fence, claim_id=claim.claim_id)
    assert world.stores.attempts.commit(decision).verdict == "merged"
    return decision


def read(world, kind, export):
    """Return all rows of a kind that the turn may read."""
    return world.stores.exports.ended(kind, export.positions[kind], later(world), 100)


def later(world):
    """Return a time after all that has ended."""
    turn = world.stores.exports.begin("w1", **TURN)
    return turn.now + timedelta(seconds=60)


def test_one_worker_exports_at_a_time(world):
    exports = world.stores.exports
    first = exports.begin("w1", **TURN)
    assert exports.begin("w2", **TURN) is None
    again = exports.begin("w1", **TURN)
    assert again.positions == first.positions
    moved = {kind: at._replace(key="x") for kind, at in first.positions.items()}
    assert exports.advance("w1", moved, refused=3)
    world.stores.leases.deregister_worker("w1")
    assert exports.begin("w2", **TURN).positions == moved
    assert not exports.advance("w1", first.positions, refused=0)


def test_a_worker_that_is_stuck_is_not_waited_for(world):
    assert world.stores.exports.begin("w1", **TURN) is not None
    assert world.stores.exports.begin("w2", patience_s=-1.0, margin_s=0.0) is not None


def test_what_ended_long_before_the_first_export_is_left_out(world):
    perform(world, world.record(enqueued()), succeeded())
    world.pass_time(61)
    export = world.stores.exports.begin("w1", **TURN)
    assert [read(world, kind, export) for kind in ("run", "attempt", "scope", "unit")] == [[], [], [], []]


def test_attempts_steps_and_runs_are_read_as_they_end(world):
    export = world.stores.exports.begin("w1", **TURN)
    new = world.record(enqueued(pipeline_of("a"), trace_parent=PARENT, tenant="acme"))
    again = following(perform(world, new, failed(feedback="no")))
    assert read(world, "run", export) == []
    [tried] = read(world, "attempt", export)
    assert (tried.key, tried.is_last) == (new.first.key, False)
    assert (tried.status, tried.reason, tried.feedback, tried.error) == ("failed", "error", "no", "ValueError")
    assert (tried.trace_parent, tried.pipeline, tried.tenant, tried.container) == (PARENT, "shapes", "acme", None)
    assert (tried.input_tokens, tried.cost_usd, tried.has_units, list(tried.unknown)) == (10, 0.25, False, [])
    world.pass_time(10)
    perform(world, new, succeeded(), at=again)
    before, last = read(world, "attempt", export)
    assert (last.number, last.status, last.is_last, last.step_began) == (2, "succeeded", True, before.step_began)
    [run] = read(world, "run", export)
    assert (run.key, run.status, list(run.links), run.is_background) == (new.first.ticket.run, "succeeded", [], False)
    assert before.began <= before.ended <= last.began <= last.ended <= run.ended
    assert [scope.address for scope in read(world, "scope", export)] == [""]


def test_a_page_ends_where_the_next_begins(world):
    exports, export = world.stores.exports, world.stores.exports.begin("w1", **TURN)
    keys = [perform(world, world.record(enqueued()), succeeded()) and number for number in range(3)]
    position, found = export.positions["attempt"], []
    for _ in keys:
        [row] = exports.ended("attempt", position, later(world), 1)
        position = row.position
        found.append(row.key)
    assert len(set(found)) == len(keys)
    assert exports.ended("attempt", position, later(world), 1) == []
    assert exports.ended("attempt", export.positions["attempt"], export.positions["attempt"].at, 9) == []


def test_units_are_read_as_they_are_answered_and_the_unanswered_with_their_attempt(world):
    export, new = world.stores.exports.begin("w1", **TURN), world.record(enqueued())
    first, run = new.first, new.first.ticket.run
    claim = world.stores.attempts.claim(first.key, "w1", max_lost=2)
    name = UnitName(f"{first.address}:{first.step}:1", b"0123456789abcdef", 0)
    asked = Unit(run, name, first.key, claim.fence, claim.claim_id, "agent__model.request")
    open_one = Unit(run, name._replace(nth=1), first.key, claim.fence, claim.claim_id, "agent__tool", "once")
    world.stores.units.begin([asked, open_one])
    world.stores.units.settle([SettledUnit(asked, Packed.of(1), Usage(7, 3, 1, 0.5, "openai:gpt-5"))])
    [unit] = read(world, "unit", export)
    assert (unit.key, unit.attempt, unit.operation, unit.tries) == (asked.id, first.key, asked.operation, 1)
    assert (unit.input_tokens, unit.output_tokens, unit.cost_usd, unit.model) == (7, 3, 0.5, "openai:gpt-5")
    decision = decided(new, succeeded(), fence=claim.fence, claim_id=claim.claim_id)
    world.stores.attempts.commit(decision)
    [attempt] = read(world, "attempt", export)
    assert (attempt.has_units, attempt.replayed, list(attempt.unknown)) == (True, 0, ["agent__tool"])


def test_events_are_read_by_attempt_and_name(world):
    export, new = world.stores.exports.begin("w1", **TURN), world.record(enqueued())
    told = [Event(name, {"place": place}) for place, name in enumerate(("one", "other", "one"))]
    perform(world, new, succeeded(events=told))
    attempts = read(world, "attempt", export)
    found = world.stores.exports.events(attempts, ["one"])
    assert [event.data["place"] for event in found[new.first.key]] == [0, 2]
    assert world.stores.exports.events([], ["one"]) == {}
