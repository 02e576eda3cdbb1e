"""Runs that come under another plan: all that is open moves with it in one act, or nothing does (ADR 37)."""

from dataclasses import replace

import pytest
from trees import fanned_out
from worlds import MAX_LOST

from flujo_client.contract.envelope import CONTROL_QUEUE
from flujo_client.contract.outcome import Event
from flujo_client.pipeline.compile import compile_plan
from flujo_client.plan.plan_difference import differences
from flujo_worker.domain.carry_on import PlanMove, move
from flujo_worker.ports import ClaimId, PlanName
from tests.support.builders import decided, enqueued, failed, member, pipeline_of, succeeded

REFERENCE = "shapes:pipeline"


def plan_of(*names, **rest):
    return compile_plan(pipeline_of(*names, **rest))


def move_to(world, new, plan, **rest):
    state = world.stores.plan_moves.run_state(new.first.ticket.run)
    return move(new.plan, plan, state, differences(new.plan, plan), control_queue=CONTROL_QUEUE, **rest)


def carry_on(world, new, plan, **rest):
    return world.stores.plan_moves.carry_on(REFERENCE, move_to(world, new, plan, **rest))


def open_attempts(world, new):
    run = new.first.ticket.run
    return [(each.key.removeprefix(f"{run}:"), each.status) for each in world.attempts(run) if each.ended_at is None]


@pytest.fixture
def new(world):
    return world.record(enqueued(pipeline_of("a", "b")))


def test_a_run_stands_where_its_rows_say(world, new):
    run = new.first.ticket.run
    world.conclude(new, succeeded(), fence=world.claim(new))
    state = world.stores.plan_moves.run_state(run)
    assert (state.reference, state.fingerprint, state.status, state.root) == (
        REFERENCE,
        new.plan.fingerprint,
        "running",
        "",
    )
    assert [(each.address, each.kind, each.status, each.cursor) for each in state.scopes] == [
        ("", "sequence", "open", 1)
    ]
    assert [(each.step, each.number, each.kind, each.status) for each in state.attempts] == [
        ("a", 1, "step", "succeeded"), ("b", 1, "step", "ready"),
    ]  # fmt: skip
    assert world.stores.plan_moves.run_state("run_none") is None


def test_what_is_open_continues_at_the_step_in_its_place(world, new):
    run, plan = new.first.ticket.run, plan_of("x", "a", "b")
    world.stores.backlog.mark_sent({new.first.key: 0.0})
    assert carry_on(world, new, plan) == "moved"
    assert world.run(run).fingerprint == plan.fingerprint
    assert open_attempts(world, new) == [(":x:1", "ready")]
    [due] = world.due()
    assert (due.envelope.step, due.envelope.ticket.fingerprint) == ("x", plan.fingerprint)
    assert world.claim(due.envelope) == 1
    assert world.stores.code.plan(plan.fingerprint) == plan


def test_the_story_tells_what_has_changed(world, new):
    plan = plan_of("a", "b", "c")
    carry_on(world, new, plan)
    [told] = [each for each in world.setting.read_events(new.first.ticket.run) if each.name == "run.carried_on"]
    assert told.data == {"from": new.plan.fingerprint, "to": plan.fingerprint, "changes": ["step 'c' was added"]}
    assert told.level == "info"


def test_a_message_of_the_old_plan_claims_nothing(world, new):
    carry_on(world, new, plan_of("a", "b", "c"))
    refused = world.stores.attempts.claim(
        new.first.key, "w1", max_lost=MAX_LOST, plan=PlanName(REFERENCE, new.plan.fingerprint)
    )
    assert refused.refusal == "moved"
    assert world.status(new) == "ready"


def test_the_claimed_attempt_of_the_mover_is_given_back(world, new):
    world.register_worker("young")
    world.claim(new, "young")
    assert carry_on(world, new, plan_of("a", "b", "c"), worker="young") == "moved"
    assert open_attempts(world, new) == [(":a:1", "ready")]


def test_a_run_that_moved_since_it_was_judged_is_left_as_it_is(world, new):
    planned = move_to(world, new, plan_of("a", "b", "c"))
    world.conclude(new, succeeded(), fence=world.claim(new))
    before = world.picture(new.first.ticket.run)
    assert world.stores.plan_moves.carry_on(REFERENCE, planned) == "changed"
    assert world.picture(new.first.ticket.run) == before
    assert world.stores.code.plan(planned.plan.fingerprint) is None


def test_an_outcome_decided_under_the_old_plan_is_refused(world, new):
    """Whoever claims while a run is moved works in vain, and merges nothing into the wrong step."""
    fence = world.claim(new)
    decision = decided(new, succeeded(), fence=fence)
    carry_on(world, new, plan_of("a", "x", "b"))
    world.claim(new)
    assert world.commit(decided(new, succeeded(), fence=fence + 1)) == "stale"
    assert world.commit(decision) == "stale"


def test_a_wait_continues(world, new):
    world.conclude(new, failed(), fence=world.claim(new))
    carry_on(world, new, plan_of("a", "b", "c"))
    assert open_attempts(world, new) == [(":a:2", "ready")]
    assert world.due() == []
    world.setting.pass_time(10.0)
    assert [each.envelope.number for each in world.due()] == [2]


def test_a_step_that_was_tried_before_continues_with_the_next_number(world, new):
    plan, back = plan_of("x", "b"), new.plan
    world.conclude(new, failed(), fence=world.claim(new))
    carry_on(world, new, plan)
    assert open_attempts(world, new) == [(":x:1", "ready")]
    state = world.stores.plan_moves.run_state(new.first.ticket.run)
    assert (
        world.stores.plan_moves.carry_on(
            REFERENCE, move(plan, back, state, differences(plan, back), control_queue=CONTROL_QUEUE)
        )
        == "moved"
    )
    assert open_attempts(world, new) == [(":a:2", "ready")]


def test_a_parked_run_is_parked_no_more(world, new):
    world.stores.plan_moves.park(ClaimId(new.first.key, world.claim(new)), "other code")
    assert carry_on(world, new, plan_of("a", "b", "c")) == "moved"
    run = world.run(new.first.ticket.run)
    assert (run.status, run.reason) == ("running", None)


def test_a_queue_of_the_new_plan_is_the_attempt_s_queue(world, new):
    carry_on(world, new, plan_of("a", "b", queue="slow"))
    world.setting.pass_time(5.0)
    [due] = world.due()
    assert due.envelope.queue == "slow"


def test_a_worker_that_was_started_before_the_plan_was_known_does_not_move_its_runs(world, new):
    """Or two versions side by side would move a run to and fro."""
    plan, run = plan_of("a", "b", "c"), new.first.ticket.run
    world.setting.pass_time(5.0)
    world.register_worker("young")
    assert carry_on(world, new, plan, worker="young") == "moved"
    state = world.stores.plan_moves.run_state(run)
    back = move(plan, new.plan, state, differences(plan, new.plan), control_queue=CONTROL_QUEUE, worker="w1")
    assert world.stores.plan_moves.carry_on(REFERENCE, back) == "older"
    world.setting.pass_time(5.0)
    world.register_worker("youngest")
    back = move(plan, new.plan, state, differences(plan, new.plan), control_queue=CONTROL_QUEUE, worker="youngest")
    assert world.stores.plan_moves.carry_on(REFERENCE, back) == "moved"


def test_an_incarnation_is_as_old_as_its_process(world, new):
    world.setting.pass_time(5.0)
    later = world.record(enqueued(pipeline_of("a", "z")))
    world.setting.pass_time(5.0)
    world.stores.leases.register_worker(member("w2"), 30.0, old="w1")
    assert carry_on(world, later, plan_of("a"), worker="w2") == "older"


def is_able(world, new, *, fingerprint=None, queue="flujo.attempts", but="w1"):
    return world.stores.plan_moves.has_able_worker(new.first.ticket.run, fingerprint, queue, but=but)


def test_a_worker_that_has_loaded_a_plan_can_take_its_runs(world, new):
    plan = new.plan.fingerprint
    assert not is_able(world, new, fingerprint=plan)
    world.stores.code.note_plan("w1", plan, None)
    assert not is_able(world, new, fingerprint=plan, but="w1"), "it asks for another one"
    world.register_worker("other")
    for _ in range(2):
        world.stores.code.note_plan("other", plan, "blue")
    assert is_able(world, new, fingerprint=plan)
    assert not is_able(world, new, fingerprint=plan_of("z").fingerprint)
    world.stores.leases.register_worker(member("later"), 30.0, old="other")
    assert is_able(world, new, fingerprint=plan), "a new incarnation has what the process has loaded"
    world.stores.leases.deregister_worker("later")
    assert not is_able(world, new, fingerprint=plan)


def test_a_worker_whose_lease_is_over_takes_nothing(world, new):
    world.register_worker("other")
    world.stores.code.note_plan("other", new.plan.fingerprint, None)
    world.setting.pass_time(60.0)
    assert not is_able(world, new, fingerprint=new.plan.fingerprint)


@pytest.mark.parametrize(
    ("rest", "is_taken"),
    [({"queues": ("gpu",)}, False), ({"queues": ("gpu", "flujo.attempts")}, True), ({"slots": 0}, False)],
)
def test_a_worker_takes_what_is_in_its_queues(world, new, rest, is_taken):
    world.stores.leases.register_worker(replace(member("other"), **rest), 30.0)
    world.stores.code.note_plan("other", new.plan.fingerprint, None)
    assert is_able(world, new, fingerprint=new.plan.fingerprint) is is_taken


def test_a_worker_that_has_let_a_run_continue_can_take_it(world, new):
    """Bodies and contexts are no part of a plan: that one fits is known when it says so, until the run is parked again."""
    world.register_worker("other")
    world.stores.plan_moves.park(ClaimId(new.first.key, world.claim(new)), "other bodies")
    assert not is_able(world, new)
    world.stores.plan_moves.unpark(new.first.ticket.run, "other")
    assert is_able(world, new)
    assert not is_able(world, new, but="other")
    world.stores.plan_moves.park(ClaimId(new.first.key, world.claim(new)), "other bodies")
    assert not is_able(world, new)


def test_all_branches_of_a_fan_out_move_at_once(world):
    first, *_ = arms = fanned_out(world, 3, lanes=2)
    world.stores.backlog.mark_sent({first.key: 0.0})
    state = world.stores.plan_moves.run_state(first.ticket.run)
    assert world.stores.plan_moves.carry_on(REFERENCE, PlanMove(state, plan_of("z"), (), ())) == "moved"
    moved = world.stores.plan_moves.run_state(first.ticket.run)
    assert [
        (each.address, each.version - old.version) for each, old in zip(moved.scopes, state.scopes, strict=True)
    ] == [(each.address, 1) for each in state.scopes]
    assert {each.key for each in moved.open_attempts} == {each.key for each in arms}
    assert {each.status for each in moved.open_attempts} == {"ready"}
    due = {each.envelope.key for each in world.due()}
    assert first.key in due
    assert arms[2].key not in due, "it waits for a lane"


def test_a_worker_of_another_build_may_have_a_missing_module_until_one_has_given_the_attempt_back(world, new):
    def has_other(worker):
        run, first = new.first.ticket.run, new.first
        return world.stores.plan_moves.has_other_build(run, first.key, first.queue, worker=worker)

    assert not has_other("w1")
    world.stores.leases.register_worker(replace(member("green"), code_build="green"), 30.0)
    assert has_other("w1")
    assert has_other("green")
    given_back = Event("attempt.lacks_module", {"build": "green"}, "warning")
    world.stores.attempts.defer(ClaimId(new.first.key, world.claim(new)), 1.0, given_back)
    assert has_other("green")
    assert not has_other("w1")
