"""Retries: the beginning of each top-level step is stored, and an ended run is forked in one commit, or not at all."""

from dataclasses import replace

import pytest
from trees import concluded, moved, opening, work

from flujo_client.address import ROOT
from flujo_client.contract.code import CodeMark
from flujo_client.pipeline.compile import compile_plan
from flujo_worker.domain.values import StepCheckpoint
from tests.support.builders import SPENT, decided, enqueued, failed, following, packed, pipeline_of, succeeded

NAMES = ("a", "b", "c")


def n(value):
    """A context."""
    return packed({"n": value})


def go_on(world, new, *outcomes):
    """Conclude the run's steps one after the other, beginning at its first attempt; give the envelope that follows the last."""
    at = new.first
    for outcome in outcomes:
        decision = decided(new, outcome, fence=world.claim(at), at=at)
        assert world.commit(decision) == "merged"
        at = following(decision) if decision.next else at
    return at


def ended(world, *outcomes, **order):
    """A run of three steps that ended so."""
    new = world.record(enqueued(pipeline_of(*NAMES, max_retries=0), context={"n": 0}, **order))
    go_on(world, new, *outcomes)
    return new


def spent(output, context=None):
    return replace(succeeded(output, context), usage=SPENT)


BROKEN = failed(retryable=False)


@pytest.fixture
def old(world):
    """A run whose third step failed; the first one wrote into the context, the second did not."""
    return ended(world, spent("A", {"n": 1}), spent("B"), BROKEN, tenant="acme")


def run_of(new):
    return new.first.ticket.run


@pytest.mark.parametrize(("place", "given", "context"), [(0, "in", None), (1, "A", 1), (2, "B", 1)])
def test_what_a_step_began_with_is_kept(world, old, place, given, context):
    found = world.beginning(run_of(old), place, NAMES[:place])
    assert found.input == packed(given)
    assert found.context == (old.first.context if context is None else n(context))


def test_a_second_try_begins_where_the_first_did(world):
    """M-006: a failed attempt leaves the context as it was."""
    new = world.record(enqueued(pipeline_of("a", "b"), context={"n": 0}))
    go_on(world, new, succeeded("A", {"n": 1}), failed(), succeeded("B", {"n": 2}))
    assert world.beginning(run_of(new), 1, ["a"]).context == n(1)


def test_a_run_without_a_context_has_none_to_keep(world):
    new = world.record(enqueued(pipeline_of(*NAMES, max_retries=0)))
    go_on(world, new, succeeded("A"), BROKEN)
    assert world.beginning(run_of(new), 1, ["a"]).context is None


def passing(world, new):
    """One commit comes to `b`, which closes at once and changes the context, and continues to `c`."""
    box = opening("b", ROOT, kind="map", step="b", name="b", place=1, status="succeeded", output=packed("B"))
    row = world.scope(run_of(new))
    move = moved(row, cursor=2, merges=True, output=packed("B"), context=n(2))
    begun = (StepCheckpoint(1, n(1)), StepCheckpoint(2, n(2)))
    after = work(opening(ROOT, ROOT), step="c")
    return concluded(new.first, move, fence=world.claim(new), opens=(box,), next=(after,), begun=begun)


def test_steps_that_one_commit_passes_are_kept_each(world):
    new = world.record(enqueued(pipeline_of(*NAMES), context={"n": 0}))
    assert world.commit(passing(world, new)) == "merged"
    found = [world.beginning(run_of(new), place, NAMES[:place]) for place in (1, 2)]
    assert [(each.context, each.input) for each in found] == [(n(1), packed("out")), (n(2), packed("B"))]


def test_what_was_written_before_the_step_ended_is_kept_too(world):
    """A question writes into the context when it is asked; the commit that continues may write nothing."""
    new = world.record(enqueued(pipeline_of(*NAMES), context={"n": 0}))
    again = replace(work(opening(ROOT, ROOT), step="a"), number=2, version=1)
    asked = moved(new.first, merges=True, context=n(5))
    assert world.commit(concluded(new.first, asked, fence=world.claim(new), next=(again,))) == "merged"
    at, after = replace(new.first, number=2, version=1, context=n(5)), work(opening(ROOT, ROOT), step="b")
    gone_on = moved(at, cursor=1, merges=True, output=packed("A"))
    decision = concluded(at, gone_on, fence=world.claim(at), next=(after,), begun=(StepCheckpoint(1, n(5)),))
    assert world.commit(decision) == "merged"
    assert world.beginning(run_of(new), 1, ["a"]).context == n(5)


def unkept(decision):
    """As a worker of the version before commits it."""
    return replace(decision, begun=())


def test_where_a_row_is_missing_nothing_is_guessed(world):
    """A fleet of two versions: the older one does not say what the next step begins with."""
    new = world.record(enqueued(pipeline_of(*NAMES), context={"n": 0}))
    first = decided(new, succeeded("A", {"n": 1}), fence=world.claim(new))
    assert world.commit(unkept(first)) == "merged"
    after = following(first)
    assert world.commit(decided(new, succeeded("B"), fence=world.claim(after), at=after)) == "merged"
    assert [world.beginning(run_of(new), place, NAMES[:place]) is None for place in (0, 1, 2)] == [False, True, True]


def test_what_is_refused_keeps_nothing(world, old):
    """Law 2: a late outcome changes nothing."""
    late = decided(old, succeeded("late", {"n": 9}), fence=1)
    assert world.commit(late) != "merged"
    assert world.beginning(run_of(old), 1, ["a"]).context == n(1)


def test_a_fork_stands_where_the_step_began(world, old):
    new = world.forked(run_of(old), "c", queue="slow", metadata={"why": "again"})
    assert world.fork(new) == run_of(new)
    run, scope = world.run(run_of(new)), world.scope(run_of(new))
    assert (run.status, run.tenant, run.metadata, run.input) == ("queued", "acme", {"why": "again"}, packed("in"))
    assert (run.forked_from, run.from_step) == (run_of(old), "c")
    assert (scope.cursor, scope.version, scope.output, scope.context) == (2, 0, packed("B"), n(1))
    [envelope] = world.stores.backlog.envelopes([new.first.key])
    assert envelope == new.first


def test_a_fork_continues_and_ends(world, old):
    new = world.forked(run_of(old), "b")
    world.fork(new)
    go_on(world, new, succeeded("B2", {"n": 5}), succeeded("C2"))
    run = world.run(run_of(new))
    assert (run.status, run.output, run.context) == ("succeeded", packed("C2"), n(5))


def test_what_was_done_before_is_taken_over_and_not_charged(world, old):
    new = world.forked(run_of(old), "c")
    world.fork(new)
    rows = {row.step: row for row in world.attempts(run_of(new))}
    assert {name: row.status for name, row in rows.items()} == {"a": "succeeded", "b": "succeeded", "c": "ready"}
    assert [rows[name].output for name in "ab"] == [packed("A"), packed("B")]
    assert rows["a"].metadata == {"taken_over_from": run_of(old)}
    assert (world.run(run_of(old)).tokens, world.run(run_of(new)).tokens) == (30 + 15, 0)


def test_the_old_run_stays_as_it_was(world, old):
    """But for its mark."""
    before = world.picture(run_of(old))
    fork = world.fork(world.forked(run_of(old), "b"))
    after = world.picture(run_of(old))
    assert world.run(run_of(old)).retried_as == fork
    assert replace(after[0], retried_as=None) == before[0]
    assert after[1:] == before[1:]


def test_a_run_is_retried_once_unless_again(world, old):
    """Its steps have effects, such as mails that would be sent twice."""
    first = world.fork(world.forked(run_of(old), "b"))
    assert world.fork(world.forked(run_of(old), "b")) is None
    assert world.run(run_of(old)).retried_as == first
    again = world.fork(replace(world.forked(run_of(old), "b"), again=True))
    assert world.run(run_of(old)).retried_as == again != first


def test_a_fork_of_a_live_run_does_not_mark_it(world, onto):
    new = world.record(enqueued(pipeline_of(*NAMES), context={"n": 0}))
    assert world.fork(world.forked(run_of(new), "a", onto=onto)) is not None
    assert world.run(run_of(new)).retried_as is None


def test_both_stories_tell_it(world, old):
    new = world.forked(run_of(old), "b")
    world.fork(new)
    told = [event.data for run in (new, old) for event in world.events(run_of(run)) if event.name == "run.forked"]
    assert told == [{"from_run": run_of(old), "from_step": "b"}, {"to_run": run_of(new), "from_step": "b"}]


def test_a_fork_can_be_forked_before_its_own_beginning(world, old):
    again = world.forked(run_of(old), "c")
    world.fork(again)
    go_on(world, again, BROKEN)
    first = world.forked(run_of(again), "b")
    world.fork(first)
    assert (first.first.input, world.scope(run_of(first)).context) == (packed("A"), n(1))
    [taken] = [row for row in world.attempts(run_of(first)) if row.step == "a"]
    assert taken.metadata["taken_over_from"] == run_of(old)


def test_a_container_is_taken_over_without_what_stood_in_it(world):
    new = world.record(enqueued(pipeline_of(*NAMES, max_retries=0), context={"n": 0}))
    world.commit(passing(world, new))
    at = replace(new.first, step="c", version=1, input=packed("B"), context=n(2))
    assert world.commit(decided(new, BROKEN, fence=world.claim(at), at=at)) == "merged"
    fork = world.forked(run_of(new), "c")
    world.fork(fork)
    [box] = world.stores.scopes.children(run_of(fork), ROOT)
    assert (box.kind, box.status, box.output) == ("map", "succeeded", packed("B"))
    assert box.metadata == {"taken_over_from": run_of(new)}


def test_a_live_run_is_not_forked(world, old):
    """It was live when it was asked for, whatever the client read before."""
    fork = world.forked(run_of(old), "b")
    world.fork(fork)
    assert world.fork(replace(fork, forked_from=run_of(fork), first=replace(fork.first, ticket=other(fork)))) is None
    assert world.scopes("run_other") == []


def other(fork):
    return replace(fork.first.ticket, run="run_other")


def test_the_same_key_gives_one_fork(world, old):
    first = world.forked(run_of(old), "b", idempotency_key="k")
    again = world.forked(run_of(old), "b", idempotency_key="k", run_id="run_other")
    assert world.fork(first) == run_of(first)
    assert world.fork(again) in (None, run_of(first))  # the client looks up which one it is
    assert world.stores.backlog.envelopes([again.first.key]) == []


@pytest.mark.parametrize("status", ["cancelled", "expired", "failed"])
def test_a_run_that_was_stopped_can_be_forked(world, status):
    new = world.record(enqueued(pipeline_of(*NAMES), context={"n": 0}))
    go_on(world, new, succeeded("A", {"n": 1}))
    assert world.stores.backlog.stop(run_of(new), status, "enough")
    fork = world.forked(run_of(new), "b")
    assert world.fork(fork) == run_of(fork)
    assert world.scope(run_of(fork)).context == n(1)


@pytest.fixture
def onto():
    """The present code: a step was removed in front of the third, and one was added behind it."""
    return compile_plan(pipeline_of("a", "c", "d", max_retries=0))


def test_a_fork_of_a_live_run_begins_under_the_present_plan(world, onto):
    """Input, context and what the steps before gave are taken over from the run, which continues."""
    new = world.record(enqueued(pipeline_of(*NAMES), context={"n": 0}))
    at = go_on(world, new, spent("A", {"n": 1}), spent("B"))
    forked = world.forked(run_of(new), "c", onto=onto)
    run = world.fork(forked)
    assert run == run_of(forked)
    assert (world.run(run).fingerprint, world.run(run).forked_from) == (onto.fingerprint, run_of(new))
    assert [(each.step, each.status) for each in world.attempts(run)] == [
        ("a", "succeeded"),
        ("b", "succeeded"),
        ("c", "ready"),
    ]
    assert (world.scope(run).cursor, world.scope(run).output, world.scope(run).context) == (1, packed("B"), n(1))
    assert world.stores.code.plan(onto.fingerprint) == onto
    assert (world.run(run_of(new)).status, world.status(at)) == ("running", "ready")
    done = decided(replace(new, plan=onto), succeeded("C"), fence=world.claim(forked), at=forked.first)
    assert world.commit(done) == "merged"
    assert following(done).step == "d"


def test_a_fork_may_be_begun_again_at_its_own_step_only(world, old, onto):
    """The steps before stand elsewhere in the other plan, so what they began with is not kept for it."""
    run = world.fork(world.forked(run_of(old), "c", onto=onto, tenant="acme"))
    assert world.beginning(run, 1, ["a"]).context == n(1)
    assert world.beginning(run, 0, []) is None


def test_a_retry_of_a_live_run_is_still_refused(world, onto):
    new = world.record(enqueued(pipeline_of(*NAMES), context={"n": 0}))
    forked = world.forked(run_of(new), "a", onto=onto)
    assert world.fork(replace(forked, of_live=False)) is None


def test_what_a_step_was_performed_with_is_taken_over(world, onto):
    new = world.record(enqueued(pipeline_of(*NAMES), context={"n": 0}))
    go_on(world, new, succeeded("A", code=CodeMark("aaaa")), succeeded("B"))
    run = world.fork(world.forked(run_of(new), "c", onto=onto))
    assert [each.code for each in world.attempts(run)] == ["aaaa", None, None]
