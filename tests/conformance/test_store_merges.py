"""Commits: all of a decision or none of it; once, however often it is repeated; and the spend once per attempt and fence."""

from dataclasses import replace
from uuid import uuid4

import pytest
from worlds import LEASE_S

from flujo_client.contract.outcome import Event, Fault, Outcome, Usage
from flujo_worker.ports import ClaimId
from tests.support.builders import BACKOFF, SPENT, decided, enqueued, failed, following, packed, pipeline_of, succeeded

TWO = pipeline_of("a", "b", max_retries=3)
HOSTILE = "a\x00b\ud800c\U0001f41d"


@pytest.fixture
def new(world):
    return world.record(enqueued(TWO, context={"n": 1}))


def run_of(new):
    return new.first.ticket.run


def next_envelope(world):
    """What the store itself would send next."""
    world.pass_time(BACKOFF.base_s + 1)
    [due] = world.due()
    return due.envelope


def lose(world, new):
    """Claim as `w1`, die, and be taken over by `w2`."""
    late = world.claim(new)
    world.pass_time(LEASE_S + 1)
    world.register_worker("w2")
    return late, world.claim(new, "w2")


def test_a_success_merges_and_makes_the_next_attempt_in_one(world, new):
    """Output, context and what comes next stand there together (M-006)."""
    decision = decided(new, succeeded("one", {"n": 2}), fence=world.claim(new))
    assert world.commit(decision) == "merged"
    first, second = world.attempts(run_of(new))
    assert (first.status, first.output) == ("succeeded", packed("one"))
    assert (second.key, second.status, second.number) == (following(decision).key, "ready", 1)
    assert world.run(run_of(new)).context == packed({"n": 2})


def test_what_the_store_sends_next_is_what_the_tail_would_have_sent(world, new):
    """Envelopes are rebuilt from the scope, not stored."""
    decision = decided(new, succeeded("one", {"n": 2}), fence=world.claim(new))
    world.commit(decision)
    assert next_envelope(world) == following(decision)
    assert following(decision).version == 1


def test_a_success_that_left_the_context_alone_keeps_it(world, new):
    world.conclude(new, succeeded("one"), fence=world.claim(new))
    assert next_envelope(world).context == new.first.context


def test_the_last_success_ends_the_run(world):
    new = world.record(enqueued(pipeline_of("a")))
    world.conclude(new, succeeded("done"), fence=world.claim(new))
    run = world.run(run_of(new))
    assert (run.status, run.output, run.is_live) == ("succeeded", packed("done"), False)
    assert run.ended_at is not None


def test_a_failure_leaves_context_and_version_byte_identical(world, new):
    """M-006: a failed attempt changes nothing of the context, not even its version."""
    decision = decided(new, failed(), fence=world.claim(new))
    assert world.commit(decision) == "merged"
    again = next_envelope(world)
    assert bytes(again.context) == bytes(new.first.context)
    assert bytes(again.input) == bytes(new.first.input)
    assert again.version == new.first.version


def test_a_failures_next_attempt_waits_and_knows_why(world, new):
    """The backoff is a row with a time, not a sleeping worker (M-405)."""
    world.conclude(new, failed(guidance="wrong tone"), fence=world.claim(new))
    world.pass_time(BACKOFF.base_s - 1)
    assert world.due() == []
    world.pass_time(2)
    [due] = world.due()
    assert (due.envelope.number, due.envelope.guidance) == (2, "wrong tone")


def test_a_terminal_failure_ends_the_run_with_its_fault(world, new):
    """The category is recorded on the attempt and on the run (M-461)."""
    world.conclude(new, failed("validation", retryable=False), fence=world.claim(new))
    run, [attempt] = world.run(run_of(new)), world.attempts(run_of(new))
    assert (run.status, run.error.category) == ("failed", "validation")
    assert (attempt.status, attempt.reason, attempt.fault) == ("failed", "error", run.error)
    assert run.context == new.first.context


def test_the_same_outcome_twice_changes_nothing(world, new):
    decision = decided(new, replace(succeeded("one", {"n": 2}), usage=SPENT), fence=world.claim(new))
    world.commit(decision)
    before, told, run = world.picture(run_of(new)), world.events(run_of(new)), world.run(run_of(new))
    assert world.commit(decision) == "repeated"
    assert (world.picture(run_of(new)), world.events(run_of(new)), world.run(run_of(new))) == (before, told, run)


@pytest.mark.parametrize("outcome", [replace(succeeded("late", {"n": 9}), usage=SPENT), failed()])
def test_a_zombies_outcome_changes_nothing_but_the_spend(world, new, outcome):
    """M-013: the attempt runs under a newer fence."""
    late, _ = lose(world, new)
    before = world.picture(run_of(new))
    assert world.conclude(new, outcome, fence=late) == "stale"
    assert world.picture(run_of(new)) == before
    assert world.run(run_of(new)).tokens == 15


def test_a_zombies_outcome_after_the_end_changes_nothing_but_the_spend(world, new):
    late, fence = lose(world, new)
    world.conclude(new, failed("validation", retryable=False), fence=fence)
    before = world.picture(run_of(new))
    assert world.conclude(new, replace(succeeded("late"), usage=SPENT), fence=late) == "stale"
    assert world.picture(run_of(new)) == before


def test_an_outcome_of_an_attempt_no_one_claimed_is_stale(world, new):
    before = world.picture(run_of(new))
    assert world.conclude(new, succeeded("out"), fence=0) == "stale"
    assert world.picture(run_of(new)) == before


def test_an_outcome_of_an_unknown_attempt_is_stale(world):
    assert world.conclude(enqueued(), succeeded(), fence=1) == "stale"


def test_another_version_is_stale_and_closes_nothing(world, new):
    """The version read at the start is checked in the commit."""
    fence = world.claim(new)
    before = world.picture(run_of(new))
    assert world.conclude(new, succeeded("out"), fence=fence, at=replace(new.first, version=7)) == "stale"
    assert world.picture(run_of(new)) == before


@pytest.mark.parametrize("asked", ["request", "stop"])
def test_nothing_merges_after_a_cancel_but_the_spend_is_recorded(world, new, asked):
    fence = world.claim(new)
    if asked == "request":
        world.request_cancel(run_of(new))
    else:
        world.stores.backlog.stop(run_of(new), "cancelled", "enough")
    before = world.picture(run_of(new))
    assert world.conclude(new, replace(succeeded("late", {"n": 9}), usage=SPENT), fence=fence) == "stopped"
    assert world.picture(run_of(new)) == before
    assert world.run(run_of(new)).cost_usd == 0.25


def test_the_spend_is_recorded_once_for_each_attempt_and_fence(world, new):
    late, fence = lose(world, new)
    for _ in range(3):
        world.stores.attempts.spend(run_of(new), ClaimId(new.first.key, late), SPENT)
    world.conclude(new, replace(succeeded("one"), usage=SPENT), fence=fence)
    world.stores.attempts.spend(run_of(new), ClaimId(new.first.key, fence), Usage(cost_usd=99.0))
    run = world.run(run_of(new))
    assert (run.tokens, run.cost_usd) == (30, 0.5)
    assert world.attempts(run_of(new))[0].tokens == 30


def test_the_story_is_told_in_order_with_the_merge(world, new):
    told = (Event("looked_up", {"hits": 3}), Event("odd", {}, "warning"))
    world.conclude(new, replace(succeeded("one"), events=told), fence=world.claim(new))
    lines = [(line.name, line.level, line.attempt) for line in world.events(run_of(new))]
    key = new.first.key
    assert lines == [("looked_up", "info", key), ("odd", "warning", key), ("step.succeeded", "info", key)]
    assert world.events(run_of(new))[0].data == {"hits": 3}


def test_a_refused_outcome_tells_nothing(world, new):
    late, _ = lose(world, new)
    world.conclude(new, replace(succeeded("late"), events=(Event("looked_up"),)), fence=late)
    assert world.events(run_of(new)) == []


def test_a_note_belongs_to_no_merge(world, new):
    world.stores.records.note(run_of(new), [Event("seen", {"by": "ana"}, "warning")], key=new.first.key)
    [line] = world.events(run_of(new))
    assert (line.name, line.level, line.attempt, line.data) == ("seen", "warning", new.first.key, {"by": "ana"})


def test_no_text_is_too_hostile_to_be_recorded(world, new):
    """NUL characters and lone surrogates are made safe, not refused (M-428)."""
    fault = Fault("agent", "E", HOSTILE, HOSTILE, suggestion=HOSTILE, guidance=HOSTILE, retryable=True)
    outcome = Outcome("failure", fault=fault, metadata={HOSTILE: HOSTILE}, events=(Event("said", {"text": HOSTILE}),))
    fence = world.claim(new)
    assert world.conclude(new, outcome, fence=fence) == "merged"
    world.stores.records.note(run_of(new), [Event("said", {HOSTILE: HOSTILE})])
    assert "\U0001f41d" in next_envelope(world).guidance


def test_no_event_name_is_too_hostile_to_be_recorded(world, new):
    """An event's name is what an agent logged (M-428)."""
    fence = world.claim(new)
    assert world.conclude(new, replace(succeeded(), events=(Event(HOSTILE),)), fence=fence) == "merged"
    world.stores.records.note(run_of(new), [Event(HOSTILE)])
    assert "\U0001f41d" in world.events(run_of(new))[0].name


def claiming(new, fence, worker="w1"):
    """A decision that claims what follows for a worker."""
    decision = decided(new, succeeded("one", {"n": 2}), fence=fence)
    return replace(decision, next=tuple(replace(each, claimed_by=worker) for each in decision.next))


def test_a_merge_claims_what_follows_for_its_worker(world, new):
    """The claim is as good as any other: no one else gets one, and it merges under its fence."""
    decision = claiming(new, world.claim(new))
    committed = world.stores.attempts.commit(decision)
    first, second = world.attempts(run_of(new))
    assert (committed.verdict, second.status, second.worker, second.fence) == ("merged", "running", "w1", 1)
    assert second.started_at == first.ended_at
    world.register_worker("w2")
    assert world.stores.attempts.claim(second.key, "w2", max_lost=2).refusal == "busy"
    last = decided(new, succeeded("two", {"n": 3}), fence=1, at=following(decision))
    stale = replace(last, notice=replace(last.notice, claim_id=str(uuid4())))
    assert world.commit(stale) == "stale"
    assert world.commit(replace(last, notice=replace(last.notice, claim_id=committed.claim_id))) == "merged"


@pytest.mark.parametrize("obstacle", ["unknown worker", "lease over", "deadline"])
def test_a_merge_claims_nothing_for_whoever_could_not_claim_it_alone(world, obstacle):
    new = world.record(enqueued(TWO, context={"n": 1}, deadline=world.now() + 5 if obstacle == "deadline" else None))
    decision = claiming(new, world.claim(new), "nobody" if obstacle == "unknown worker" else "w1")
    if obstacle == "lease over":
        world.pass_time(LEASE_S + 1)
    if obstacle == "deadline":
        world.pass_time(6)
    committed = world.stores.attempts.commit(decision)
    assert (committed.verdict, committed.claim_id) == ("merged", None)
    [_, second] = world.attempts(run_of(new))
    assert (second.status, second.worker, second.fence) == ("ready", None, 0)
