"""Events that are sent to runs, in memory and in Postgres: each is taken once, in order, whether it comes before the step or after it (ADR 58)."""

from dataclasses import replace
from functools import partial

import pytest
from test_store_child_runs import BOX, beginning, first_of
from test_store_questions import open_question
from trees import ASKED, asking, concluded, fanned_out, moved
from worlds import ROUNDS, World, key_of, run_of, say

from flujo_worker.domain.retention import RetentionRule
from flujo_worker.domain.values import EndRun
from flujo_worker.ports import Committed
from tests.support.builders import enqueued, envelopes, packed, pipeline_of

GO = ASKED | {"event": "go"}


def begun(world, **rest):
    """A run whose first step is claimed; its first message and the fence."""
    new = world.record(enqueued(replace(pipeline_of("a", "ask"), **rest)))
    return new.first, world.claim(new)


def waiting(world, question=GO, **rest):
    """A run that waits for an event; the envelope of the wait."""
    first, fence = begun(world)
    return await_event(world, first, fence, question, **rest)


def await_event(world, at, fence, question=GO, **rest):
    decision = asking(at, fence=fence, question=question, **rest)
    assert world.commit(decision) == "merged"
    return envelopes(decision)[0]


def hand_over(world, limit=100):
    return world.stores.backlog.hand_over_events(limit)


def given(world, *waits):
    """The values that waits were given; None for one that still waits."""
    replies = [world.stores.records.reply(key_of(each)).answer for each in waits]
    return [None if reply is None else reply.value.tree() for reply in replies]


def test_an_event_that_is_awaited_becomes_work_that_is_due(world):
    wait = waiting(world)
    assert world.run(run_of(wait)).status == "paused"
    assert world.send(run_of(wait), "go", "1", packed({"n": 1}))
    assert (hand_over(world), hand_over(world)) == (1, 0)
    assert [each.envelope.key for each in world.due()] == [key_of(wait)]
    assert given(world, wait) == [{"n": 1}]
    assert world.stores.records.reply(key_of(wait)).answer.note == "1"


def test_an_event_that_comes_early_waits_for_its_step_which_gets_it_as_it_begins_to_wait(world):
    first, fence = begun(world)
    assert world.send(first.ticket.run, "go", "1", packed("early"))
    assert hand_over(world) == 0
    assert world.event_state(first.ticket.run, "go", "1").buffered == 1
    decision = asking(first, fence=fence, question=GO)
    [wait] = envelopes(decision)
    assert world.stores.attempts.commit(decision) == Committed("merged", given=[key_of(wait)])
    assert (world.run(run_of(wait)).status, given(world, wait), world.due()) == ("running", ["early"], [])
    world.pass_time(60)
    assert (hand_over(world), [each.envelope.key for each in world.due()]) == (0, [key_of(wait)])
    assert world.event_state(run_of(wait), "go", "1").buffered == 0


def test_the_same_id_is_recorded_once(world):
    wait = waiting(world)
    assert [world.send(run_of(wait), "go", "1", packed(each)) for each in ("a", "a", "b")] == [True, False, False]
    assert world.event_state(run_of(wait), "go", "1").digest == packed("a").digest
    hand_over(world)
    assert not world.send(run_of(wait), "go", "1", packed("a"))
    assert world.send(run_of(wait), "stop", "1", packed("another name has ids of its own"))
    assert given(world, wait) == ["a"]


def test_events_of_one_name_are_taken_in_their_order_by_the_steps_that_wait_longest(world):
    first, second, _ = fanned_out(world, 3)
    waits = []
    for each in (second, first):
        waits.append(await_event(world, each, world.claim(each)))
        world.pass_time(1)
    for number in range(3):
        world.send(run_of(first), "go", str(number), packed(number))
    world.send(run_of(first), "other", "x", packed("not this one"))
    assert hand_over(world) == 2
    assert given(world, *waits) == [0, 1]


def test_an_early_event_goes_to_the_step_that_waits_longest_too(world):
    """No sweep comes between the events and the second step."""
    first, second, _ = fanned_out(world, 3)
    waits = [await_event(world, first, world.claim(first))]
    world.pass_time(1)
    for number in range(2):
        world.send(run_of(first), "go", str(number), packed(number))
    waits.append(await_event(world, second, world.claim(second)))
    assert given(world, *waits) == [0, 1]
    assert hand_over(world) == 0


def test_another_name_another_run_and_a_person_get_nothing(world):
    wait, question, other = waiting(world), open_question(world), waiting(world, ASKED | {"event": "stop"})
    for each in (question, other):
        world.send(run_of(each), "go", "1", packed("x"))
    assert hand_over(world) == 0
    assert given(world, wait, question, other) == [None, None, None]
    assert world.questions(run_of(wait)) == []


@pytest.mark.parametrize("is_early", [False, True])
def test_a_step_of_a_child_run_gets_what_its_parent_or_it_was_sent(world, is_early):
    """A child that is awaited; the oldest event first, and what the child was sent is for no one else."""
    new = world.record(enqueued(pipeline_of("a", BOX)))
    decision = beginning(new.first, fence=world.claim(new))
    assert world.commit(decision) == "merged"
    first = first_of(world, decision)
    parent, child = new.first.ticket.run, first.ticket.run
    wait = None if is_early else await_event(world, first, world.claim(first))
    world.send(parent, "go", "1", packed("to the parent"))
    world.send(child, "go", "1", packed("to the child"))
    assert len(world.event_state(parent, "go", "").schemas) == (not is_early)
    wait = wait or await_event(world, first, world.claim(first))
    assert (hand_over(world), hand_over(world)) == (not is_early, 0)
    assert given(world, wait) == ["to the parent"]


def test_no_more_are_given_at_once_than_asked_for(world):
    for _ in range(3):
        world.send(run_of(waiting(world)), "go", "1", packed("x"))
    assert [hand_over(world, 2) for _ in range(3)] == [2, 1, 0]


def test_what_has_ended_or_is_cancelled_takes_no_event(world):
    wait = waiting(world)
    world.send(run_of(wait), "go", "1", packed("x"))
    world.request_cancel(run_of(wait))
    assert not world.event_state(run_of(wait), "go", "2").is_live
    assert not world.send(run_of(wait), "go", "2", packed("x"))
    assert hand_over(world) == 0
    world.stores.backlog.stop(run_of(wait), "cancelled", "enough")
    assert (hand_over(world), world.status(wait)) == (0, "cancelled")
    assert not world.send("no such run", "go", "1", packed("x"))


def test_an_event_in_time_is_taken_until_the_wait_has_expired(world):
    waits = [waiting(world, expires_s=60.0) for _ in range(2)]
    world.send(run_of(waits[0]), "go", "1", packed("in time"))
    world.pass_time(61)
    assert (hand_over(world), world.stores.backlog.expire_questions(10)) == (1, 1)
    assert given(world, *waits) == ["in time", None]


def test_events_are_deleted_with_their_run(world):
    first, fence = begun(world)
    world.send(first.ticket.run, "go", "1", packed("nobody waits"))
    world.commit(concluded(first, moved(first, status="succeeded"), fence=fence, end=EndRun("succeeded")))
    assert world.event_state(first.ticket.run, "go", "1").digest is not None
    world.pass_time(100)
    assert len(world.stores.retention.prune_runs([RetentionRule("succeeded", 1.0)], 10)) == 1
    assert not world.send(first.ticket.run, "go", "1", packed("nobody waits"))


def test_nobody_is_told_that_a_run_waits_for_an_event(world):
    """`on_pause_requested` is for people."""
    for question, owed in ((GO, 0), (ASKED, 1)):
        first, fence = begun(world, hooks=[print])
        await_event(world, first, fence, question)
        calls = [each.payload for each in world.stores.hook_calls.pending("w1", 9) if each.run == first.ticket.run]
        assert calls == ["on_pause_requested"] * owed


@pytest.mark.services
@pytest.mark.usefixtures("no_deadlock")
class TestRaces:
    @pytest.fixture
    def world(self, postgres):
        postgres.empty()
        world = World(postgres)
        world.register_worker("w1", lease_s=1e6)  # it outlasts the time that all rounds pass
        return world

    @pytest.fixture
    def send_in_threads(self, settings_of_threads):
        return lambda *event: settings_of_threads().send(*event)

    def test_a_step_begins_while_an_event_is_sent_and_two_sweeps_look(self, world, race, send_in_threads):
        """Nothing is lost and nothing is given twice, whoever is first."""
        for _ in range(ROUNDS):
            first, fence = begun(world)
            decision = asking(first, fence=fence, question=GO)
            committed, is_sent, *handed = race(
                partial(world.stores.attempts.commit, decision),
                partial(send_in_threads, first.ticket.run, "go", "1", packed("x")),
                partial(hand_over, world),
                partial(hand_over, world),
            )
            assert (committed.verdict, is_sent) == ("merged", True)
            assert len(committed.given) + sum(handed) + hand_over(world) == 1
            assert given(world, *envelopes(decision)) == ["x"]

    def test_two_sweeps_give_two_events_to_two_steps_in_order(self, world, race):
        for _ in range(ROUNDS):
            arms = fanned_out(world, 2)
            waits = []
            for each in arms:
                waits.append(await_event(world, each, world.claim(each)))
                world.pass_time(1)
            for number in range(2):
                world.send(run_of(arms[0]), "go", str(number), packed(number))
            race(partial(hand_over, world), partial(hand_over, world))
            hand_over(world)
            assert given(world, *waits) == [0, 1]

    def test_a_step_that_was_seen_late_does_not_take_an_event_that_another_sweep_gives(self, world, held, database_url):
        """Its transaction began before that of a step that is served already, and ended after it."""
        second, first = fanned_out(world, 2)
        served = await_event(world, second, world.claim(second))
        world.send(run_of(served), "go", "1", packed("x"))
        say(held, "hand_over_events", {"limit": 9, "grace_s": 0.0})
        older = await_event(world, first, world.claim(first))
        held_before = (
            "UPDATE flujo_attempts SET created_at = created_at - interval '1 hour' WHERE key = %(key)s RETURNING 1"
        )
        world.setting.rows(held_before, key=key_of(older))
        assert hand_over(world) == 0, "without waiting for the other sweep"
        held.commit()
        assert hand_over(world) == 0
        assert given(world, served, older) == ["x", None]
        assert world.status(older) == "paused"

    def test_of_two_senders_with_one_id_one_is_heard(self, world, race, send_in_threads):
        for _ in range(ROUNDS):
            wait = waiting(world)
            sent = race(*(partial(send_in_threads, run_of(wait), "go", "1", packed(who)) for who in ("ana", "bob")))
            assert sorted(sent) == [False, True]
            hand_over(world)
            assert given(world, wait) == [("ana", "bob")[sent.index(True)]]

    def test_an_event_and_the_timeout(self, world, race):
        """Either it is given, or the step is late; the row moves once."""
        for _ in range(ROUNDS):
            wait = waiting(world, expires_s=0.001)
            world.send(run_of(wait), "go", "1", packed("x"))
            world.pass_time(1)
            handed, expired = race(partial(hand_over, world), lambda: world.stores.backlog.expire_questions(9))
            assert handed + expired + hand_over(world) + world.stores.backlog.expire_questions(9) == 1
            assert given(world, wait) == (["x"] if not expired else given(world, wait))
