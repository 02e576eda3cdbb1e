"""Races of a run's move to another plan with what else happens to it (ADR 37); on Postgres."""

import pytest
from worlds import MAX_LOST, ROUNDS, World, run_of

from flujo_client.contract.envelope import CONTROL_QUEUE
from flujo_client.pipeline.compile import compile_plan
from flujo_client.plan.plan_difference import differences
from flujo_worker.domain.carry_on import move
from flujo_worker.ports import PlanName
from tests.support.builders import decided, enqueued, pipeline_of, succeeded

pytestmark = pytest.mark.services

REFERENCE = "shapes:pipeline"
OLD, NEW = pipeline_of("a", "b"), pipeline_of("a", "x", "b")
PLAN = compile_plan(NEW)


@pytest.fixture
def world(postgres, no_deadlock):
    return World(postgres)


def mover(world, new, plan=PLAN):
    state = world.stores.plan_moves.run_state(run_of(new))
    planned = move(new.plan, plan, state, differences(new.plan, plan), control_queue=CONTROL_QUEUE)
    return lambda: world.stores.plan_moves.carry_on(REFERENCE, planned)


def test_a_move_against_a_merge_has_one_winner(world, race):
    """Either the outcome is merged under the old plan and the run is not moved, or it is moved and the outcome is refused."""
    seen = set()
    for _ in range(ROUNDS):
        new = world.record(enqueued(OLD))
        decision = decided(new, succeeded(), fence=world.claim(new))
        seen.add(tuple(race(mover(world, new), lambda decision=decision: world.commit(decision))))
    assert seen == {("moved", "stale"), ("changed", "merged")}


def test_whoever_claims_while_a_run_is_moved_merges_nothing_under_the_old_plan(world, race):
    seen = set()
    for _ in range(ROUNDS):
        new = world.record(enqueued(OLD))
        name = PlanName(REFERENCE, new.plan.fingerprint)
        moved, claim = race(
            mover(world, new),
            lambda new=new, name=name: world.stores.attempts.claim(new.first.key, "w1", max_lost=MAX_LOST, plan=name),
        )
        seen.add((moved, claim.refusal))
        if moved == "moved" and claim.fence is not None:
            assert world.commit(decided(new, succeeded(), fence=claim.fence)) == "stale"
        assert (moved == "moved") == (world.run(run_of(new)).fingerprint == PLAN.fingerprint)
    assert ("moved", "moved") in seen
    assert ("changed", None) in seen


def test_two_moves_have_one_winner(world, race):
    other = compile_plan(pipeline_of("a", "b", "c"))
    for _ in range(ROUNDS):
        new = world.record(enqueued(OLD))
        one, two = race(mover(world, new), mover(world, new, other))
        assert sorted((one, two)) == ["changed", "moved"]
        assert world.run(run_of(new)).fingerprint == (PLAN if one == "moved" else other).fingerprint


def test_a_move_against_a_cancel_leaves_nothing_alive(world, race):
    for _ in range(ROUNDS):
        new = world.record(enqueued(OLD))
        *_, stopped = race(
            mover(world, new), lambda new=new: world.stores.backlog.stop(run_of(new), "cancelled", "enough")
        )
        assert stopped
        assert [each.status for each in world.attempts(run_of(new))] == ["cancelled"]
