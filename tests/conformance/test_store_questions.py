"""Questions to people, in memory and in Postgres (SYS-17): one thing moves an open question, and the rest finds it closed."""

from functools import partial

import pytest
from trees import ASKED, FAN, asking, closing, concluded, fanned_out, moved, signal_join
from worlds import ROUNDS, World, key_of, run_of

from flujo_client.contract.outcome import Fault
from flujo_client.transport.chords import NO_LANE
from flujo_worker.domain.values import EndRun, NextAttempt, SlotReleased
from tests.support.builders import enqueued, envelopes, packed, pipeline_of


def open_question(world, **rest):
    """A run with a question open; its envelope."""
    new = world.record(enqueued(pipeline_of("a", "ask"), context={"n": 0}))
    decision = asking(new.first, fence=world.claim(new), **rest)
    assert world.commit(decision) == "merged"
    [envelope] = envelopes(decision)
    return envelope


def test_an_open_question_is_no_ones_work(world):
    """M-449: it is neither due nor claimed, however long it waits, whatever becomes of the broker."""
    question = open_question(world)
    assert (world.status(question), world.run(run_of(question)).status) == ("paused", "paused")
    world.pass_time(30 * 86_400)
    world.register_worker("w1")
    assert world.stores.backlog.expire_questions(10) == 0
    assert world.due(epoch=world.now()) == []
    assert world.refusal(question) == "ended"


def test_an_answer_makes_it_work_that_is_due(world):
    """The row is the outbox: whoever sweeps publishes it."""
    question = open_question(world)
    assert world.answer(key_of(question), packed("yes"), actor="ana", note="so")
    assert [each.envelope.kind for each in world.due()] == ["resume"]
    world.claim(question)
    reply = world.stores.records.reply(key_of(question))
    assert (reply.question["message"], reply.answer.actor, reply.answer.note) == ("go?", "ana", "so")
    assert reply.answer.value.tree() == "yes"


def test_what_was_answered_at_a_step_can_be_read(world):
    """M-327: of that step alone; a question that is still open is no part of it."""
    question = open_question(world)
    where = run_of(question), question.address, question.step
    assert world.stores.records.replies(*where) == []
    world.answer(key_of(question), packed("yes"), actor="ana")
    [reply] = world.stores.records.replies(*where)
    assert (reply.question, reply.answer.value.tree(), reply.answer.actor) == (ASKED, "yes", "ana")
    assert world.stores.records.replies(run_of(question), question.address, "other") == []
    assert world.stores.records.replies(run_of(open_question(world)), *where[1:]) == []


def test_a_question_takes_one_answer(world):
    """M-452: single use."""
    question = open_question(world)
    assert [world.answer(key_of(question), packed(each), actor=each) for each in ("ana", "bob")] == [True, False]
    [told] = world.questions(run_of(question))
    assert (told.state, told.answered_by) == ("answered", "ana")
    world.claim(question)
    assert world.answer(key_of(question), packed("late")) is False
    assert world.stores.records.reply(key_of(question)).answer.value.tree() == "ana"


def test_a_question_whose_time_is_over_becomes_work_without_an_answer(world):
    question = open_question(world, expires_s=60.0)
    assert world.stores.backlog.expire_questions(10) == 0
    world.pass_time(61)
    world.register_worker("w1")
    assert world.answer(key_of(question), packed("late")) is False
    assert world.stores.backlog.expire_questions(10) == 1
    assert [each.envelope.key for each in world.due()] == [key_of(question)]
    assert world.stores.records.reply(key_of(question)).answer is None
    where = run_of(question), question.address, question.step
    assert [each.answer for each in world.stores.records.replies(*where)] == [None]
    assert [each.state for each in world.questions(run_of(question))] == ["expired"]


def test_what_is_cancelled_does_not_expire(world):
    question = open_question(world, expires_s=60.0)
    world.request_cancel(run_of(question))
    world.pass_time(61)
    assert world.stores.backlog.expire_questions(10) == 0


def test_only_as_many_questions_expire_as_are_asked_for(world):
    for _ in range(3):
        open_question(world, expires_s=60.0)
    world.pass_time(61)
    assert [world.stores.backlog.expire_questions(2) for _ in range(3)] == [2, 1, 0]


def test_a_cancel_closes_the_question(world):
    """From the request on nothing is answered; the acknowledgement leaves no open row."""
    question = open_question(world)
    world.request_cancel(run_of(question))
    assert world.answer(key_of(question), packed("late")) is False
    assert world.stores.backlog.stop(run_of(question), "cancelled", "enough")
    assert (world.status(question), world.run(run_of(question)).status) == ("cancelled", "cancelled")
    assert [each.state for each in world.questions(run_of(question))] == ["closed"]


def test_a_deadline_closes_the_question(world):
    new = world.record(enqueued(pipeline_of("a", "ask"), deadline=world.now() + 60))
    decision = asking(new.first, fence=world.claim(new))
    world.commit(decision)
    world.pass_time(61)
    assert world.answer(envelopes(decision)[0].key, packed("late")) is False


def test_work_that_asks_no_one_has_no_reply(world):
    new = world.record(enqueued())
    assert world.stores.records.reply(key_of(new)) is None
    assert world.stores.records.reply("no:such::key") is None
    assert world.questions(run_of(new)) == []


def test_a_question_that_cannot_be_asked_is_a_failed_row(world):
    """U-26: the history has it, and the client stopped waiting."""
    new = world.record(enqueued(pipeline_of("a", "ask")))
    first = new.first
    why = Fault("human", "HumanInputError", "empty", "empty", code="EMPTY_MESSAGE")
    given = {"input": first.input, "context": None, "version": 0, "kind": "resume", "fault": why}
    row = NextAttempt("", "ask", 1, "flujo.attempts", **given)
    end = EndRun("failed", "step 'ask' failed", why)
    move = moved(first, status="failed", fault=why)
    assert world.commit(concluded(first, move, fence=world.claim(new), next=(row,), end=end)) == "merged"
    told = world.attempts(run_of(new))[-1]
    assert (told.step, told.status, told.reason, told.fault) == ("ask", "failed", "error", why)
    assert (told.ended_at is not None, world.run(run_of(new)).status) == (True, "failed")
    assert world.questions(run_of(new)) == []


def test_a_run_with_other_work_is_not_paused(world):
    arm, other, _ = fanned_out(world)
    world.commit(asking(arm, fence=world.claim(arm)))
    assert world.run(run_of(arm)).status == "running"
    world.claim(other)


def test_who_waits_for_a_lane_keeps_no_run_from_being_paused(world):
    """M-449: what is held behind a question cannot run before the answer."""
    first, _ = fanned_out(world, 2, lanes=1)
    world.commit(asking(first, fence=world.claim(first)))
    assert world.run(run_of(first)).status == "paused"


def pausing(world, arm, lane=0, addresses=None):
    """A branch pauses and leaves its lane; tell who got it, and the question's envelope."""
    left = SlotReleased(FAN, lane, addresses or (arm.address,))
    decision = asking(arm, fence=world.claim(arm), lane_left=left)
    committed = world.stores.attempts.commit(decision)
    assert committed.verdict == "merged"
    return committed.taken, envelopes(decision)[0]


def test_a_branch_that_pauses_gives_its_lane_to_the_next(world):
    """Design §4: the sibling is due, and the branch has no lane from then on."""
    first, second, third = fanned_out(world, 3, lanes=1)
    taken, _ = pausing(world, first)
    assert taken == second.key
    assert world.scope(run_of(first), first.address).lanes == {FAN: NO_LANE}
    assert world.scope(run_of(first), second.address).lanes == {FAN: 0}
    assert world.scope(run_of(first), third.address).lanes == {}


def test_without_a_sibling_that_waits_the_lane_is_kept(world):
    first, *_ = fanned_out(world, 2)
    assert pausing(world, first)[0] is None
    assert world.scope(run_of(first), first.address).lanes == {FAN: 0}


def test_a_question_is_rebuilt_without_the_lane(world):
    """So that its message is no part of the chord."""
    first, *_ = fanned_out(world, 2, lanes=1)
    _, question = pausing(world, first)
    world.answer(key_of(question), packed("yes"))
    [envelope] = world.stores.backlog.envelopes([key_of(question)])
    assert (envelope.kind, envelope.lanes) == ("resume", {FAN: NO_LANE})


def test_a_join_waits_for_a_branch_that_paused(world):
    first, second = fanned_out(world, 2, lanes=1)
    _, question = pausing(world, first)
    world.commit(closing(second, fence=world.claim(second)))
    assert not signal_join(world, first)
    world.answer(key_of(question), packed("yes"))
    [again] = world.stores.backlog.envelopes([key_of(question)])
    world.commit(closing(again, fence=world.claim(again), lane=NO_LANE, takes=False))
    assert signal_join(world, first)


def test_an_aborted_fan_out_closes_its_questions(world):
    first, second = fanned_out(world, 2)
    _, question = pausing(world, first)
    world.commit(closing(second, fence=world.claim(second), status="failed", aborts=True))
    world.stores.scopes.wind_down_branches(run_of(first), FAN)
    assert world.status(question) == "cancelled"
    assert world.scope(run_of(first), first.address).status == "cancelled"
    assert signal_join(world, first)


real = pytest.mark.usefixtures("no_deadlock")


@pytest.mark.services
@real
class TestRaces:
    @pytest.fixture
    def world(self, postgres):
        postgres.empty()
        return World(postgres)

    @pytest.fixture
    def ask_in_threads(self, settings_of_threads):
        return lambda key, value, **rest: settings_of_threads().answer(key, value, **rest)

    def test_of_two_people_at_once_one_is_heard(self, world, race, ask_in_threads):
        """M-452."""
        for _ in range(ROUNDS):
            key = key_of(open_question(world))
            taken = race(*(partial(ask_in_threads, key, packed(who), actor=who) for who in ("ana", "bob", "eve")))
            assert sorted(taken) == [False, False, True]
            assert world.stores.records.reply(key).answer.actor == ("ana", "bob", "eve")[taken.index(True)]

    def test_an_answer_and_a_cancel(self, world, race, ask_in_threads):
        """Cancel wins: an answered row is cancelled too, and no open one is left."""
        for _ in range(ROUNDS):
            question = open_question(world)
            run = run_of(question)
            _, stopped = race(
                partial(ask_in_threads, key_of(question), packed("yes")),
                partial(world.stores.backlog.stop, run, "cancelled", "enough"),
            )
            assert (stopped, world.status(question), world.run(run).status) == (True, "cancelled", "cancelled")

    def test_an_answer_and_the_expiry(self, world, race, ask_in_threads):
        """Either it is answered, or it is over."""
        for _ in range(ROUNDS):
            question = open_question(world, expires_s=0.004)
            is_taken, _ = race(
                partial(ask_in_threads, key_of(question), packed("yes")),
                lambda: world.stores.backlog.expire_questions(9),
            )
            assert (world.stores.records.reply(key_of(question)).answer is not None) == is_taken

    def test_a_pause_and_a_cancel(self, world, race):
        """The statement after the merge locks nothing in another order."""
        for _ in range(ROUNDS):
            first, second = fanned_out(world, 2, lanes=1)
            decision = asking(first, fence=world.claim(first), lane_left=SlotReleased(FAN, 0, (first.address,)))
            race(
                partial(world.stores.attempts.commit, decision),
                partial(world.stores.backlog.stop, run_of(first), "cancelled", "enough"),
            )
            assert {each.status for each in world.attempts(run_of(second))} == {"cancelled", "succeeded"}
