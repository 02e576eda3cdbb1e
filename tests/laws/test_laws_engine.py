"""The laws, over a corpus of shapes and everything that can happen to a message; each with a mutant that breaks it.

1 the same notice twice changes nothing. 2 a late outcome changes nothing. 4 a failed attempt leaves the context byte-identical.
5 nothing follows a terminal status, and cancel wins. 6 a live run always has one live attempt, and a way on.
"""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shapes import SHAPES, Rough

from flujo_worker.errors import IllegalTransition
from flujo_worker.store.memory.attempts import AttemptsInMemory
from flujo_worker.store.memory.backlog import BacklogInMemory
from tests.support.breadth import examples
from tests.support.builders import packed
from tests.support.memory import AskedInMemory, asked

MISHAPS = ("deliver", "deliver", "deliver", "double", "drop", "wait", "haunt", "zombie", "again")
shapes = st.sampled_from(sorted(SHAPES))
mishaps = st.lists(st.tuples(st.sampled_from(MISHAPS), st.integers(0, 7)), max_size=25)
lawful = settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
noticed = pytest.raises((AssertionError, IllegalTransition))


def meet(engine, mishap, place):
    """Let one thing happen."""
    if mishap == "deliver":
        engine.deliver_at(place)
    elif mishap == "double":
        engine.double(place)
    elif mishap == "drop":
        engine.drop(place)
    elif mishap == "wait":
        engine.wait(0.3 * 3**place)
    elif mishap == "haunt":
        engine.haunt()
    elif engine.notices:
        notice = engine.notices[place % len(engine.notices)]
        if mishap == "zombie":
            notice = replace(notice, fence=notice.fence - 1)
        refuse_late(engine, [notice])


def refuse_late(engine, notices):
    """Conclude what is over already, or is not this one's to conclude: nothing changes."""
    _, history = before = engine.picture()
    rows = {each.key: each for each in history}
    for notice in notices:
        row = rows[notice.envelope.key]
        if (row.status, row.fence) != ("running", notice.fence):
            out = engine.bus.copy()
            assert engine.conclude(notice).verdict != "merged"
            assert engine.picture() == before
            engine.bus = out  # what a repeated conclusion publishes again is another law's matter


def plainly(shape):
    with Rough(shape) as engine:
        engine.settle()
        return engine.story_of_it()


def whatever_happens_the_end_is_the_same(shape, happened):
    """Messages doubled, dropped and reordered, workers that die, late outcomes: the result and history of the plain run."""
    with Rough(shape) as engine:
        for mishap, place in happened:
            meet(engine, mishap, place)
            assert engine.has_a_way_on
        engine.settle()
        assert engine.story_of_it() == plainly(shape)


def the_same_notice_twice_changes_nothing(shape):
    with Rough(shape) as engine:
        seen = 0
        while engine.is_live:
            engine.deliver_at(0) if engine.bus else engine.wait(100)
            for decision in engine.decisions[seen:]:
                before, told = engine.picture(), engine.story(engine.run_id)
                assert engine.commit(decision).verdict == "repeated"
                assert (engine.picture(), engine.story(engine.run_id)) == (before, told)
            seen = len(engine.decisions)


def a_late_outcome_changes_nothing(shape):
    with Rough(shape) as engine:
        while engine.is_live:
            engine.haunt()
            engine.haunt()
            refuse_late(engine, engine.notices[-20:])
            engine.wait(100)
            for _ in range(len(engine.bus)):
                engine.deliver_at(0)


def a_failed_attempt_leaves_the_context_byte_identical(shape):
    """M-006: and its version, and what the next attempt gets."""
    with Rough(shape) as engine:
        while engine.is_live:
            before = {each.address: engine.kept(each.address) for each in engine.live}
            seen = len(engine.decisions)
            engine.deliver_at(0) if engine.bus else engine.wait(100)
            for decision in engine.decisions[seen:]:
                address = decision.notice.envelope.address
                if decision.close.status == "failed" and address in before:
                    after = engine.kept(address)
                    assert after == before[address] or after[1] is None


def nothing_follows_a_cancel(shape, before, after):
    with Rough(shape) as engine:
        for mishap, place in before:
            meet(engine, mishap, place)
        is_accepted = asked(engine.stores).request_cancel(engine.run_id)
        flagged = engine.picture()
        for mishap, place in after:
            meet(engine, mishap, place)
        assert engine.picture() == flagged
        for run, status in engine.stores.backlog.runs_to_stop(10):
            engine.stores.backlog.stop(run, status, "asked")
        acknowledged = engine.picture()
        assert engine.live == []
        for mishap, place in (*after, *before):
            meet(engine, mishap, place)
        assert engine.picture() == acknowledged
        assert (acknowledged[0].status == "cancelled") == is_accepted


@lawful
@given(shapes, mishaps)
def test_whatever_happens_the_end_is_the_same(shape, happened):
    whatever_happens_the_end_is_the_same(shape, happened)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_notice_twice_changes_nothing(shape):
    the_same_notice_twice_changes_nothing(shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_late_outcome_changes_nothing(shape):
    a_late_outcome_changes_nothing(shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_failed_attempt_leaves_the_context_byte_identical(shape):
    a_failed_attempt_leaves_the_context_byte_identical(shape)


@lawful
@given(shapes, mishaps, mishaps)
def test_nothing_follows_a_cancel(shape, before, after):
    nothing_follows_a_cancel(shape, before, after)


def test_the_corpus_ends_in_every_way():
    """What the laws compare with is not empty."""
    ends = {shape: plainly(shape)[0] for shape in SHAPES}
    assert {shape for shape, end in ends.items() if end == "failed"} == {"failing", "refused", "aborted", "spoilt"}
    assert plainly("stumbling")[1] == "{'total': 12, 'notes': ['r 2']} after 1"
    assert plainly("large")[2].notes_text == "bees" * 200


def test_mutant_who_merges_without_looking(monkeypatch):
    monkeypatch.setattr(AttemptsInMemory, "_judge", lambda *_: "merged")
    with noticed:
        the_same_notice_twice_changes_nothing("adding")


def test_mutant_who_does_not_look_at_the_fence(monkeypatch):
    judge = AttemptsInMemory._judge

    def blind(store, decision):
        row = store._t.attempts[decision.notice.envelope.key]
        return judge(store, replace(decision, notice=replace(decision.notice, fence=row.fence)))

    monkeypatch.setattr(AttemptsInMemory, "_judge", blind)
    with noticed:
        a_late_outcome_changes_nothing("adding")
    with noticed:
        whatever_happens_the_end_is_the_same("adding", [("haunt", 0), ("haunt", 0), ("again", 0)])


@pytest.mark.parametrize("broken", ["version", "context"])
def test_mutant_whose_failures_leave_a_trace(monkeypatch, broken):
    apply = AttemptsInMemory._apply

    def careless(store, decision):
        apply(store, decision)
        scope = store._t.scopes[decision.notice.envelope.ticket.run, ""]
        if decision.close.status == "failed":
            setattr(scope, broken, scope.version + 1 if broken == "version" else packed({"total": -1}))

    monkeypatch.setattr(AttemptsInMemory, "_apply", careless)
    with noticed:
        a_failed_attempt_leaves_the_context_byte_identical("stumbling")


def test_mutant_who_claims_and_merges_after_a_cancel(monkeypatch):
    monkeypatch.setattr(AskedInMemory, "request_cancel", lambda *_: True)
    with noticed:
        nothing_follows_a_cancel("adding", [("deliver", 0)], [("deliver", 0)])


def test_mutant_who_leaves_an_attempt_alive_at_a_cancel(monkeypatch):
    stop = BacklogInMemory.stop

    def forgetful(store, run, status, reason):
        live = [row for row in store._t.attempts.values() if row.status in ("ready", "queued")]
        answer = stop(store, run, status, reason)
        for row in live:
            row.status = "ready"
        return answer

    monkeypatch.setattr(BacklogInMemory, "stop", forgetful)
    with noticed:
        nothing_follows_a_cancel("adding", [("deliver", 0)], [])


def test_mutant_who_forgets_what_comes_next(monkeypatch):
    apply = AttemptsInMemory._apply
    monkeypatch.setattr(AttemptsInMemory, "_apply", lambda store, decision: apply(store, replace(decision, next=())))
    with noticed:
        whatever_happens_the_end_is_the_same("adding", [("deliver", 0)])


def test_mutant_whose_sweeper_is_blind(monkeypatch):
    monkeypatch.setattr(BacklogInMemory, "due", lambda *_, **__: [])
    with noticed:
        whatever_happens_the_end_is_the_same("adding", [("deliver", 0), ("drop", 0)])


def test_mutant_who_claims_what_has_ended(monkeypatch):
    monkeypatch.setattr(AttemptsInMemory, "_refusal", lambda *_, **__: None)
    with noticed:
        whatever_happens_the_end_is_the_same("stumbling", [("double", 0), ("deliver", 0), ("deliver", 0)])
