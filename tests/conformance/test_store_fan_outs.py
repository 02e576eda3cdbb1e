"""Fan-outs: lanes, signals, joins, aborts, stopping and parking."""

from dataclasses import replace

import pytest
from trees import (
    FAN,
    close_all,
    closing,
    concluded,
    fanned_out,
    fanning_out,
    join_of,
    joined,
    moved,
    opening,
    signal_join,
    work,
)
from worlds import LEASE_S, MAX_LOST

from flujo_worker.ports import Claim, ClaimId
from flujo_worker.store.shared_rules import GRACE_S
from tests.support.builders import envelopes, packed

LIVE = {"ready", "queued", "running"}


def run_of(at):
    return at.ticket.run


def commit(world, at, **end):
    """A branch closes; give what was taken."""
    answer = world.stores.attempts.commit(closing(at, fence=world.claim(at), **end))
    assert answer.verdict == "merged"
    return answer.taken


def statuses(world, at, address=FAN):
    return [row.status for row in world.stores.scopes.children(run_of(at), address)]


def test_a_branch_closes_without_a_word_to_its_fan_out(world):
    """Law: a branch's commit never writes its parent; what it changed is its patch."""
    arms = fanned_out(world, 2)
    before = world.scope(run_of(arms[0]), FAN)
    commit(world, arms[0])
    row = world.scope(run_of(arms[0]), arms[0].address)
    assert (row.status, row.patch, row.context) == ("succeeded", packed({"at": row.address}), None)
    assert world.scope(run_of(arms[0]), FAN) == before


def test_a_branch_without_a_lane_is_neither_claimed_nor_taken_for_sent(world):
    """A failover to a lagging replica has lost that it got one; its message, and the note that it was sent, are still there."""
    arms = fanned_out(world, 2, lanes=1)
    world.stores.backlog.mark_sent({arms[1].key: 0.0})
    assert world.refusal(arms[1]) == "busy"
    assert commit(world, arms[0]) == arms[1].key
    assert commit(world, arms[1]) is None


def test_the_lane_goes_to_the_next_branch_in_order(world):
    arms = fanned_out(world, 5, lanes=2)
    assert commit(world, arms[1], lane=1) == arms[2].key
    assert commit(world, arms[0], lane=0) == arms[3].key
    assert commit(world, arms[2], lane=1) == arms[4].key
    assert commit(world, arms[3], lane=0) is None
    lanes = [row.lanes[FAN] for row in world.stores.scopes.children(run_of(arms[0]), FAN)]
    assert lanes == [0, 1, 1, 0, 1]


def test_lanes_in_which_nothing_runs_are_given_to_branches_that_wait(world):
    """A merge does not pass on a lane if another session has locked the next branch."""
    arms, scopes = fanned_out(world, 5, lanes=2), world.stores.scopes
    run = run_of(arms[0])
    assert commit(world, arms[0], lane=0, takes=False) is None
    assert scopes.idle_lanes(9) == []
    assert commit(world, arms[1], lane=1, takes=False) is None
    idle = sorted(scopes.idle_lanes(9))
    assert (idle, scopes.stranded(9)) == ([(run, FAN, 0), (run, FAN, 1)], [])
    for each in idle * 2:  # a sweep that stood still gives them again
        scopes.give_lane(*each)
    assert [row.lanes.get(FAN) for row in scopes.children(run, FAN)] == [0, 1, 0, 1, None]
    assert scopes.idle_lanes(9) == []
    assert commit(world, arms[2], lane=0) == arms[4].key


def test_no_lane_of_an_aborted_fan_out_is_idle(world):
    arms = fanned_out(world, 2, lanes=1)
    commit(world, arms[0], status="failed", aborts=True)
    assert world.stores.scopes.idle_lanes(9) == []


def test_what_took_the_lane_is_due_like_any_other_row(world):
    arms = fanned_out(world, 2, lanes=1)
    taken = commit(world, arms[0], lane=0)
    [envelope] = world.stores.backlog.envelopes([taken])
    assert envelope == replace(arms[1], lanes={FAN: 0})
    assert world.due() == []
    world.pass_time(GRACE_S + 0.1)
    assert [due.envelope for due in world.due()] == [envelope]
    assert world.claim(envelope) == 1


@pytest.mark.parametrize("end", [{"takes": False}, {"aborts": True}])
def test_a_branch_may_end_without_giving_its_lane_away(world, end):
    arms = fanned_out(world, 2, lanes=1)
    assert commit(world, arms[0], **end) is None
    assert world.scope(run_of(arms[0]), arms[1].address).lanes == {}


def test_in_an_aborted_fan_out_no_lane_is_given_away(world):
    arms = fanned_out(world, 3, lanes=2)
    commit(world, arms[0], status="failed", aborts=True)
    assert commit(world, arms[1], lane=1) is None


def test_a_lane_is_given_away_in_its_own_fan_out_alone(world):
    arms, others = fanned_out(world, 2, lanes=1), fanned_out(world, 2, lanes=1)
    assert commit(world, arms[0]) == arms[1].key
    assert commit(world, arms[1]) is None
    assert world.status(others[1]) == "ready"


def test_who_says_it_again_hears_again_who_took_the_lane(world):
    """The answer was lost: the retry must publish the same."""
    arms = fanned_out(world, 3, lanes=1)
    decision = closing(arms[0], fence=world.claim(arms[0]))
    taken = world.stores.attempts.commit(decision).taken
    world.claim(world.stores.backlog.envelopes([taken])[0])
    again = world.stores.attempts.commit(decision)
    assert (again.verdict, again.taken) == ("repeated", arms[1].key)
    assert world.scope(run_of(arms[0]), arms[2].address).lanes == {}


def test_only_the_last_of_a_lane_counts_as_its_end(world):
    arms = fanned_out(world, 3, lanes=1)
    places = [(run_of(arm), arm.address, arm.key) for arm in arms]
    close_all(world, arms)
    assert [world.stores.scopes.is_last_of_lane(*each) for each in places] == [False, False, True]
    assert not world.stores.scopes.is_last_of_lane(run_of(arms[2]), arms[2].address, arms[1].key)
    assert not world.stores.scopes.is_last_of_lane(run_of(arms[2]), "nowhere", arms[1].key)


def test_a_branch_that_is_open_is_not_the_last_of_its_lane(world):
    [arm] = fanned_out(world, 1)
    assert not world.stores.scopes.is_last_of_lane(run_of(arm), arm.address, arm.key)


def test_no_one_joins_before_all_branches_are_closed(world):
    arms = fanned_out(world, 3)
    close_all(world, arms[:2])
    assert not signal_join(world, arms[0])
    close_all(world, arms[2:])
    assert signal_join(world, arms[0])


def test_however_often_it_is_rung_there_is_one_join_and_one_line(world):
    arms = fanned_out(world, 2)
    close_all(world, arms)
    assert [signal_join(world, arms[0], by) for by in ("chord", "worker", "sweeper")] == [True] * 3
    assert [each.kind for each in world.attempts(run_of(arms[0]))].count("join") == 1
    told = [(line.attempt, line.data) for line in world.events(run_of(arms[0])) if line.name == "join.rung"]
    assert told == [(join_of(arms[0]), {"by": "chord"})]


def test_a_join_is_work_like_any_other(world):
    """Claimed under a fence; it owns its fan-out's scope, whose version no one raised meanwhile."""
    arms = fanned_out(world, 2)
    close_all(world, arms)
    join = joined(world, arms[0])
    box = world.scope(run_of(join), FAN)
    assert (join.kind, join.address, join.step, join.queue) == ("join", FAN, FAN, "flujo.control")
    assert (join.input, join.context, join.version) == (box.output, box.context, box.version)
    closed = moved(join, status="succeeded", output=packed([1]), drops_context=True, merges=True)
    root = moved(world.scope(run_of(join)), cursor=2, merges=True, context=packed({"n": 9}))
    assert world.commit(concluded(join, closed, root, fence=world.claim(join))) == "merged"
    assert world.scope(run_of(join)).context == packed({"n": 9})
    assert not signal_join(world, arms[0])


def test_a_ring_for_what_is_no_fan_out_is_no_ring(world):
    arms = fanned_out(world, 1)
    assert not signal_join(world, arms[0], fan_out="")
    assert not signal_join(world, arms[0], fan_out=arms[0].address)
    assert not signal_join(world, arms[0], fan_out="nowhere")
    assert not world.stores.scopes.signal_join("run_none", FAN, "flujo.control", "worker")


@pytest.mark.parametrize("stop", ["request", "stop"])
def test_a_ring_after_a_cancel_is_none(world, stop):
    arms = fanned_out(world, 2)
    close_all(world, arms)
    if stop == "request":
        world.request_cancel(run_of(arms[0]))
    else:
        world.stores.backlog.stop(run_of(arms[0]), "cancelled", "enough")
    assert not signal_join(world, arms[0])
    assert join_of(arms[0]) not in [each.key for each in world.attempts(run_of(arms[0]))]


def test_a_parked_runs_join_is_made_and_waits(world):
    arms = fanned_out(world, 2)
    fence = world.claim(arms[0])
    world.stores.plan_moves.park(ClaimId(arms[1].key, world.claim(arms[1])), "no such code here")
    assert world.commit(closing(arms[0], fence=fence)) == "merged"
    world.stores.plan_moves.unpark(run_of(arms[0]), "w")
    fence = world.claim(arms[1])
    world.commit(closing(arms[1], fence=fence))
    assert signal_join(world, arms[0])
    world.stores.plan_moves.park(ClaimId(join_of(arms[0]), world.claim(joined(world, arms[0]))), "again")
    assert signal_join(world, arms[0])
    assert world.refusal(join_of(arms[0])) == "parked"


def test_a_join_whose_worker_died_is_due_again_and_in_the_end_poisoned(world):
    """All kinds of work are swept alike."""
    arms = fanned_out(world, 1)
    close_all(world, arms)
    join = joined(world, arms[0])
    for number in range(MAX_LOST + 1):
        world.register_worker(f"v{number}")
        world.claim(join, f"v{number}", room="alone")
        world.stores.leases.deregister_worker(f"v{number}")
        due = [(each.why, each.envelope) for each in world.due()]
        assert due == ([("lost", join)] if number < MAX_LOST else [])
    [(envelope, fence, _)] = world.poisoned()
    assert (envelope, fence) == (join, MAX_LOST + 2)


def test_a_join_that_no_one_rang_for_is_found_after_a_while(world):
    arms = fanned_out(world, 2)
    close_all(world, arms[:1])
    world.pass_time(9)
    close_all(world, arms[1:])
    assert world.stores.scopes.missed_joins(9, 2.0) == []
    world.pass_time(2.1)
    assert world.stores.scopes.missed_joins(9, 2.0) == [(run_of(arms[0]), FAN)]
    signal_join(world, arms[0])
    assert world.stores.scopes.missed_joins(9, 2.0) == []


def test_no_ring_is_missed_while_a_branch_is_open(world):
    arms = fanned_out(world, 2)
    close_all(world, arms[:1])
    world.pass_time(99)
    assert world.stores.scopes.missed_joins(9, 2.0) == []


def test_a_cancelled_runs_join_is_not_looked_for(world):
    arms = fanned_out(world, 1)
    close_all(world, arms)
    world.pass_time(9)
    world.request_cancel(run_of(arms[0]))
    assert world.stores.scopes.missed_joins(9, 2.0) == []


def test_no_more_joins_are_looked_for_than_wanted(world):
    for _ in range(3):
        close_all(world, fanned_out(world, 1))
    world.pass_time(9)
    assert len(world.stores.scopes.missed_joins(2, 2.0)) == 2


def test_a_fan_out_is_closed_once_its_last_branch_is(world):
    arms, others = fanned_out(world, 2), fanned_out(world, 1)
    here, other = (run_of(arms[0]), FAN), (run_of(others[0]), FAN)
    for place, arm in enumerate(arms):
        assert not world.stores.scopes.closed_among([here, other])
        commit(world, arm, lane=place)
    assert world.stores.scopes.closed_among([here, other]) == {here}
    assert not world.stores.scopes.closed_among([])


def test_a_failing_branch_marks_its_fan_out_and_nothing_else(world):
    """The mark is not a merge: a join that reads the version before it may still commit."""
    arms = fanned_out(world, 3)
    before = world.scope(run_of(arms[0]), FAN)
    commit(world, arms[0], status="failed", aborts=True)
    here, other = (run_of(arms[0]), FAN), (run_of(arms[0]), "other")
    assert world.stores.scopes.aborted_among([other, here]) == {here}
    assert not world.stores.scopes.aborted_among([other])
    assert not world.stores.scopes.aborted_among([])
    assert world.scope(run_of(arms[0]), FAN) == before
    assert statuses(world, arms[0]) == ["failed", "open", "open"]


def test_a_claim_tells_that_a_fan_out_it_is_in_was_aborted(world):
    arms = fanned_out(world, 3)
    ask = lambda arm, fan_outs: world.stores.attempts.claim(arm.key, "w1", max_lost=MAX_LOST, fan_outs=fan_outs)  # noqa: E731
    assert ask(arms[1], [FAN]) == Claim(fence=1)
    commit(world, arms[0], status="failed", aborts=True)
    assert ask(arms[2], ["other", FAN]) == Claim(fence=1, aborted=True)
    assert ask(arms[1], [FAN]) == Claim(fence=1, refusal="busy", aborted=True)


def test_two_branches_may_abort_and_both_are_heard(world):
    arms = fanned_out(world, 2)
    for arm in arms:
        commit(world, arm, status="failed", aborts=True)
    assert statuses(world, arms[0]) == ["failed", "failed"]
    assert signal_join(world, arms[0])


def test_winding_down_cancels_what_waits_and_leaves_what_runs(world):
    arms = fanned_out(world, 5, lanes=4)
    fence = world.claim(arms[2])
    world.stores.backlog.mark_sent({arms[1].key: 0.0})
    commit(world, arms[0], status="failed", aborts=True)
    world.stores.scopes.wind_down_branches(run_of(arms[0]), FAN)
    assert [world.status(arm) for arm in arms[1:]] == ["cancelled", "running", "cancelled", "cancelled"]
    assert {each.reason for each in world.attempts(run_of(arms[0])) if each.status == "cancelled"} == {"aborted"}
    assert statuses(world, arms[0]) == ["failed", "cancelled", "open", "cancelled", "cancelled"]
    assert world.scope(run_of(arms[0]), FAN).status == "open"
    assert world.run(run_of(arms[0])).status == "running"
    assert world.commit(closing(arms[2], fence=fence, status="cancelled", takes=False)) == "merged"
    assert signal_join(world, arms[0])


def test_winding_down_closes_what_no_one_is_in_however_deep(world):
    """In one branch an attempt runs three scopes down: all above it stay open. The other is empty by now: all of it closes."""
    arms = fanned_out(world, 3)
    inner = [descend(world, arm) for arm in arms[:2]]
    world.claim(inner[0])
    commit(world, arms[2], status="failed", aborts=True)
    world.stores.scopes.wind_down_branches(run_of(arms[0]), FAN)
    rows = {row.address: row for row in world.tree(run_of(arms[0]))}
    open_ones = sorted(address for address, row in rows.items() if row.status == "open")
    assert open_ones == ["", FAN, f"{FAN}/b0", f"{FAN}/b0/loop", f"{FAN}/b0/loop#1"]
    assert rows[f"{FAN}/b1/loop#1"].status == "cancelled"
    assert rows[f"{FAN}/b1/loop"].context is None


def descend(world, arm):
    """A branch comes to a loop; give the first attempt in its first iteration."""
    box = opening(f"{arm.address}/loop", arm.address, kind="loop", lanes=dict(arm.lanes))
    first = opening(f"{box.address}#1", box.address, lanes=box.lanes)
    decision = concluded(arm, moved(arm), fence=world.claim(arm), opens=(box, first), next=(work(first),))
    assert world.commit(decision) == "merged"
    return envelopes(decision)[0]


def test_winding_down_touches_its_own_fan_out_alone(world):
    """`f2` and `fg` begin with the same letters, and another run has the same addresses."""
    others = fanned_out(world, 1)
    [arm, *_] = fanned_out(world, 2)
    decision = fanning_out(arm, 1, address=f"{FAN}2", fence=world.claim(arm))
    world.commit(decision)
    [beside] = envelopes(decision)
    abort(world, run_of(arm), FAN)
    world.stores.scopes.wind_down_branches(run_of(arm), FAN)
    assert world.status(beside) == world.status(others[0]) == "ready"
    assert world.scope(run_of(arm), beside.address).status == "open"
    assert statuses(world, arm) == ["cancelled", "failed"]


def abort(world, run, fan_out):
    arm = next(row for row in world.stores.scopes.children(run, fan_out) if row.place == 1)
    [envelope] = world.stores.backlog.envelopes([f"{run}:{arm.address}:s:1"])
    world.commit(closing(envelope, fence=world.claim(envelope), status="failed", aborts=True))


def test_what_was_not_aborted_is_not_wound_down(world):
    arms = fanned_out(world, 2)
    before = world.picture(run_of(arms[0]))
    world.stores.scopes.wind_down_branches(run_of(arms[0]), FAN)
    world.stores.scopes.wind_down_branches(run_of(arms[0]), "nowhere")
    assert world.picture(run_of(arms[0])) == before


def test_an_abort_that_a_failover_lost_once_it_was_read_winds_nothing_down(world, monkeypatch):
    """Otherwise its run would fail for branches that were cancelled, and not for the branch's error."""
    arms = fanned_out(world, 2)
    before = world.picture(run_of(arms[0]))
    monkeypatch.setattr(world.stores.scopes, "aborted_among", set)
    world.stores.scopes.wind_down_branches(run_of(arms[0]), FAN)
    assert world.picture(run_of(arms[0])) == before


def test_an_attempt_is_cancelled_only_while_its_fan_out_is_aborted(world):
    """A failover may have lost the abort that its worker has read; then its branch has to run."""
    arms = fanned_out(world, 2)
    cancelled = closing(arms[0], fence=world.claim(arms[0]), status="cancelled", takes=False)
    assert world.commit(cancelled) == "stale"
    assert statuses(world, arms[0]) == ["open", "open"]
    commit(world, arms[1], status="failed", aborts=True)
    assert world.commit(cancelled) == "merged"
    assert statuses(world, arms[0]) == ["cancelled", "failed"]


def test_winding_down_twice_is_winding_down(world):
    arms = fanned_out(world, 2)
    commit(world, arms[0], status="failed", aborts=True)
    world.stores.scopes.wind_down_branches(run_of(arms[0]), FAN)
    before = world.picture(run_of(arms[0]))
    world.stores.scopes.wind_down_branches(run_of(arms[0]), FAN)
    assert world.picture(run_of(arms[0])) == before


def test_an_aborted_fan_out_is_looked_after_until_its_branches_are_closed(world):
    arms = fanned_out(world, 2)
    assert world.stores.scopes.aborted(9) == []
    commit(world, arms[0], status="failed", aborts=True)
    assert world.stores.scopes.aborted(9) == [(run_of(arms[0]), FAN)]
    assert world.stores.scopes.aborted(0) == []
    world.stores.scopes.wind_down_branches(run_of(arms[0]), FAN)
    assert world.stores.scopes.aborted(9) == []
    world.pass_time(3)
    assert world.stores.scopes.missed_joins(9, 2.0) == [(run_of(arms[0]), FAN)]


def test_a_cancelled_runs_aborts_are_not_looked_after(world):
    arms = fanned_out(world, 2)
    commit(world, arms[0], status="failed", aborts=True)
    world.request_cancel(run_of(arms[0]))
    assert world.stores.scopes.aborted(9) == []


def test_an_outcome_of_an_attempt_that_was_wound_down_is_stale(world):
    """Its worker had died: it was published again, and is cancelled before anyone claims it."""
    arms = fanned_out(world, 2)
    fence = world.claim(arms[1])
    world.pass_time(LEASE_S + 1)
    world.register_worker("w1")
    world.stores.leases.deregister_worker("w1")
    world.register_worker("w2")
    world.due()
    claim = world.stores.attempts.claim(arms[0].key, "w2", max_lost=MAX_LOST)
    world.commit(closing(arms[0], fence=claim.fence, status="failed", aborts=True))
    world.stores.scopes.wind_down_branches(run_of(arms[0]), FAN)
    assert world.commit(closing(arms[1], fence=fence)) == "stale"


def test_a_stop_closes_every_scope_and_cancels_what_is_held(world):
    arms = fanned_out(world, 4, lanes=2)
    world.claim(arms[0])
    assert world.stores.backlog.stop(run_of(arms[0]), "cancelled", "enough")
    assert {row.status for row in world.tree(run_of(arms[0]))} == {"cancelled"}
    assert not LIVE & {each.status for each in world.attempts(run_of(arms[0]))}
    assert [row.address for row in world.tree(run_of(arms[0])) if row.context is not None] == [""]


def test_what_a_stop_cancelled_was_not_said_before(world):
    """A branch that closes itself as cancelled does so under the same fence: the two are distinguished."""
    arms = fanned_out(world, 2)
    fence = world.claim(arms[0])
    world.stores.backlog.stop(run_of(arms[0]), "cancelled", "enough")
    assert world.commit(closing(arms[0], fence=fence, status="cancelled")) == "stopped"


def test_parking_leaves_what_is_held_where_it_is(world):
    arms = fanned_out(world, 3, lanes=2)
    fences = [world.claim(arm) for arm in arms[:2]]
    assert world.stores.plan_moves.park(ClaimId(arms[0].key, fences[0]), "no such code here")
    assert not world.stores.plan_moves.park(ClaimId(arms[1].key, fences[1]), "nor here")
    world.stores.plan_moves.unpark(run_of(arms[0]), "w")
    due = [each.envelope for each in world.due()]
    assert sorted(due, key=lambda each: each.key) == arms[:2]
    assert commit(world, arms[0]) == arms[2].key
