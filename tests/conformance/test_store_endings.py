"""Stopping and parking: cancel wins and leaves nothing alive; a parked run continues where it was."""

import pytest

from flujo_worker.ports import ClaimId
from tests.support.builders import SPENT, decided, enqueued, failed, following, pipeline_of, succeeded

LIVE = {"ready", "queued", "running"}
HOSTILE = "a\x00b\ud800c"


def run_of(new):
    return new.first.ticket.run


@pytest.fixture
def new(world):
    return world.record(enqueued(pipeline_of("a", "b", max_retries=3)))


def bring(world, new, status):
    """Bring the run's attempt to a status."""
    if status == "queued":
        world.stores.backlog.mark_sent({new.first.key: 0.0})
    elif status == "running":
        world.claim(new)
    elif status == "waiting":
        world.conclude(new, failed(), fence=world.claim(new))
    elif status == "parked":
        world.stores.plan_moves.park(ClaimId(new.first.key, world.claim(new)), "no such code")


@pytest.mark.parametrize("status", ["ready", "queued", "running", "waiting", "parked"])
@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_a_stop_leaves_no_live_attempt(world, new, status, end):
    bring(world, new, status)
    assert world.stores.backlog.stop(run_of(new), end, "enough")
    last = world.attempts(run_of(new))[-1]
    assert (last.status, last.reason) == ("cancelled", end)
    assert not LIVE & {each.status for each in world.attempts(run_of(new))}
    run = world.run(run_of(new))
    assert (run.status, run.reason, run.is_live) == (end, "enough", False)
    assert run.ended_at is not None


def test_a_stop_is_told_once(world, new):
    world.stores.backlog.stop(run_of(new), "cancelled", "enough")
    world.stores.backlog.stop(run_of(new), "cancelled", "again")
    [line] = world.events(run_of(new))
    assert (line.name, line.level, line.data) == ("run.cancelled", "warning", {"reason": "enough"})


@pytest.mark.parametrize("outcome", [succeeded(), failed("plugin")])
def test_a_run_that_has_ended_cannot_be_stopped(world, outcome):
    new = world.record(enqueued())
    world.conclude(new, outcome, fence=world.claim(new))
    before = world.picture(run_of(new))
    assert not world.stores.backlog.stop(run_of(new), "cancelled", "too late")
    assert world.picture(run_of(new)) == before


def test_an_unknown_run_cannot_be_stopped(world):
    assert not world.stores.backlog.stop("run_none", "cancelled", "what?")


def test_the_reason_may_be_any_text(world, new):
    """M-428."""
    assert world.stores.backlog.stop(run_of(new), "cancelled", HOSTILE)


def test_a_stopped_run_gets_no_next_attempt(world, new):
    fence = world.claim(new)
    world.stores.backlog.stop(run_of(new), "cancelled", "enough")
    world.commit(decided(new, failed(), fence=fence))
    assert len(world.attempts(run_of(new))) == 1


def test_the_cancel_that_was_asked_for_is_what_turned_tells(world, new):
    world.request_cancel(run_of(new))
    assert world.stores.backlog.runs_to_stop(10) == [(run_of(new), "cancelled")]
    world.stores.backlog.stop(run_of(new), "cancelled", "asked")
    assert world.stores.backlog.runs_to_stop(10) == []


def test_the_reason_that_a_person_gave_is_the_runs(world, new):
    """The first one's; whoever winds the run down says `cancelled` only where no one said more."""
    world.request_cancel(run_of(new), "never mind")
    world.request_cancel(run_of(new), "never mind at all")
    world.stores.backlog.stop(run_of(new), "cancelled", "cancelled")
    assert world.run(run_of(new)).reason == "never mind"
    assert world.events(run_of(new))[-1].data == {"reason": "never mind"}


def test_a_run_past_its_deadline_has_expired(world):
    new = world.record(enqueued(deadline=world.now() + 60))
    assert world.stores.backlog.runs_to_stop(10) == []
    world.pass_time(61)
    assert world.stores.backlog.runs_to_stop(10) == [(run_of(new), "expired")]


def test_a_cancel_before_the_deadline_stays_a_cancel(world):
    new = world.record(enqueued(deadline=world.now() + 60))
    world.request_cancel(run_of(new))
    world.pass_time(61)
    assert world.stores.backlog.runs_to_stop(10) == [(run_of(new), "cancelled")]


def test_turned_gives_as_many_as_are_wanted(world):
    for _ in range(3):
        world.request_cancel(run_of(world.record(enqueued())))
    assert len(world.stores.backlog.runs_to_stop(2)) == 2


def test_a_run_that_has_ended_cannot_be_asked_to_cancel(world):
    new = world.record(enqueued())
    world.conclude(new, succeeded(), fence=world.claim(new))
    assert not world.request_cancel(run_of(new))
    assert world.stores.backlog.runs_to_stop(10) == []


def test_a_parked_run_waits_with_its_reason(world, new):
    assert world.stores.plan_moves.park(ClaimId(new.first.key, world.claim(new)), "no such code here")
    run, [attempt] = world.run(run_of(new)), world.attempts(run_of(new))
    assert (run.status, run.reason) == ("parked", "no such code here")
    assert (attempt.status, attempt.number) == ("ready", 1)
    assert world.stores.plan_moves.parked(10) == [(run_of(new), "shapes:pipeline", new.plan.fingerprint)]
    assert [line.name for line in world.events(run_of(new))] == ["run.parked"]


def test_parked_runs_of_one_pipeline_do_not_hide_those_of_another(world):
    """Code that no one deploys any more may have left more of them than a sweep looks at."""
    gone = [world.record(enqueued(pipeline_of("gone"))) for _ in range(3)]
    here = [world.record(enqueued(pipeline_of("here"))) for _ in range(2)]
    for new in (*gone, *here):
        world.stores.plan_moves.park(ClaimId(new.first.key, world.claim(new)), "no such code here")
    looked_at = [run for run, _, _ in world.stores.plan_moves.parked(4)]
    assert looked_at == [run_of(new) for new in (gone[0], here[0], gone[1], here[1])]


def test_a_parked_run_is_not_published(world, new):
    world.stores.plan_moves.park(ClaimId(new.first.key, world.claim(new)), "no such code here")
    world.pass_time(100)
    assert world.due(epoch=world.now()) == []


def test_a_parked_attempt_continues_under_its_number_and_a_new_fence(world, new):
    world.stores.plan_moves.park(ClaimId(new.first.key, world.claim(new)), "no such code here")
    assert world.stores.plan_moves.unpark(run_of(new), "w")
    assert (world.run(run_of(new)).status, world.run(run_of(new)).reason) == ("running", None)
    [due] = world.due()
    assert (due.why, due.envelope) == ("ready", new.first)
    assert world.claim(due.envelope) == 2
    assert world.stores.plan_moves.parked(10) == []


def test_only_who_holds_the_attempt_can_park_it(world, new):
    fence = world.claim(new)
    assert not world.stores.plan_moves.park(ClaimId(new.first.key, fence + 1), "not mine")
    assert world.status(new) == "running"
    assert not world.stores.plan_moves.park(ClaimId("run_none::a:1", 1), "unknown")


def test_the_outcome_of_a_parked_attempt_is_stale(world, new):
    fence = world.claim(new)
    world.stores.plan_moves.park(ClaimId(new.first.key, fence), "no such code here")
    assert world.conclude(new, succeeded(), fence=fence) == "stale"


def test_the_reason_to_park_may_be_any_text(world, new):
    """It names what an import raised (M-428)."""
    assert world.stores.plan_moves.park(ClaimId(new.first.key, world.claim(new)), HOSTILE)


def test_only_a_parked_run_is_unparked(world, new):
    assert not world.stores.plan_moves.unpark(run_of(new), "w")
    assert not world.stores.plan_moves.unpark("run_none", "w")


def test_parking_spends_nothing_and_a_later_merge_counts(world):
    new = world.record(enqueued(pipeline_of("a", "b")))
    world.stores.plan_moves.park(ClaimId(new.first.key, world.claim(new)), "not here")
    world.stores.plan_moves.unpark(run_of(new), "w")
    decision = decided(new, succeeded(usage=SPENT), fence=world.claim(new))
    assert world.commit(decision) == "merged"
    assert world.run(run_of(new)).tokens == 15
    assert world.status(following(decision)) == "ready"
