"""The queries of the sweeper: work that is due and why, poisoned attempts, the turn to sweep, and published messages."""

import itertools
import threading
from dataclasses import replace

import pytest
from worlds import LEASE_S, MAX_LOST

from flujo_worker.store.shared_rules import GRACE_S
from tests.support.builders import BACKOFF, decided, enqueued, failed, following, pipeline_of, succeeded

GONE_S = 3.0
NUMBERS = itertools.count()


@pytest.fixture
def new(world):
    return world.record(enqueued(pipeline_of("a", "b", max_retries=3), context={"n": 1}))


def whys(due):
    return [each.why for each in due]


def send(world, new, *, age=0.0):
    """Say that the message went out `age` seconds ago."""
    world.stores.backlog.mark_sent({new.first.key: age})


def test_the_publisher_has_a_moment_before_the_sweeper_does_its_work(world, new):
    assert world.due() == []
    world.pass_time(GRACE_S + 0.1)
    [due] = world.due()
    assert (due.why, due.envelope) == ("ready", new.first)


def test_what_is_given_is_marked_as_out(world, new):
    world.pass_time(GRACE_S + 0.1)
    world.due()
    assert world.due() == []
    [attempt] = world.attempts(new.first.ticket.run)
    assert (attempt.status, attempt.sends) == ("queued", 1)


def test_an_envelope_is_rebuilt_with_all_it_had(world):
    """Nothing is lost on the way through the rows: ticket, queue, context, input."""
    pipeline = pipeline_of("a", queue="gpu")
    order = {
        "queue": "mine",
        "priority": 3,
        "tenant": "acme",
        "trace_parent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    new = world.record(enqueued(pipeline, {"k": [1]}, context={"n": 1}, deadline=world.now() // 1 + 500, **order))
    world.pass_time(GRACE_S + 0.1)
    [due] = world.due()
    moved = due.envelope.ticket.deadline - new.first.ticket.deadline
    assert moved == pytest.approx(0, abs=GRACE_S + 0.2)
    assert replace(due.envelope, ticket=new.first.ticket) == new.first
    assert replace(due.envelope.ticket, deadline=new.first.ticket.deadline) == new.first.ticket


def test_a_large_value_stays_a_reference(world):
    new = world.record(enqueued(value="x" * 500, inline=100, context={"text": "y" * 500}))
    world.pass_time(GRACE_S + 0.1)
    [due] = world.due()
    assert due.envelope.references == new.first.references
    assert due.envelope.context.is_reference


def test_the_longest_due_come_first_and_no_more_than_wanted(world):
    runs = []
    for _ in range(3):
        runs.append(world.record(enqueued()))
        world.pass_time(1)
    world.pass_time(GRACE_S)
    assert [due.envelope.key for due in world.due(limit=2)] == [new.first.key for new in runs[:2]]
    assert [due.envelope.key for due in world.due(limit=2)] == [runs[2].first.key]


@pytest.mark.parametrize("turn", ["cancel", "deadline", "end"])
def test_a_run_that_is_over_has_nothing_due(world, turn):
    new = world.record(enqueued(deadline=world.now() + 50))
    if turn == "cancel":
        world.request_cancel(new.first.ticket.run)
    if turn == "end":
        world.conclude(new, succeeded(), fence=world.claim(new))
    world.pass_time(100 if turn == "deadline" else 10)
    assert world.due(epoch=world.now() + 1) == []


def test_a_dead_workers_attempt_is_lost_and_keeps_its_number(world, new):
    """M-013: a redelivery is not a new attempt."""
    world.claim(new)
    world.pass_time(LEASE_S + 1)
    [due] = world.due()
    assert (due.why, due.envelope) == ("lost", new.first)
    assert [each.number for each in world.attempts(new.first.ticket.run)] == [1]


def test_no_one_is_judged_by_who_may_not(world, new):
    world.claim(new)
    world.pass_time(LEASE_S + 1)
    assert world.due(may_judge=False) == []
    assert world.status(new) == "running"


def test_a_live_worker_is_not_judged(world, new):
    world.claim(new)
    world.pass_time(LEASE_S - 1)
    assert world.due() == []


def lose(world, new, times=1):
    """Let a worker that runs nothing else claim it and die, `times` over."""
    for _ in range(times):
        name = f"doomed-{next(NUMBERS)}"
        world.register_worker(name)
        world.claim(new, name, room="alone")
        world.stores.leases.deregister_worker(name)


@pytest.mark.parametrize("swept", [True, False])
def test_what_was_lost_too_often_is_published_no_more(world, new, swept):
    """However it was lost: by a sweep's word, or taken over by a claim."""
    for _ in range(MAX_LOST):
        lose(world, new)
        assert not swept or whys(world.due()) == ["lost"]
    lose(world, new)
    assert world.due() == []
    assert len(world.poisoned()) == 1


def test_what_was_sent_in_another_epoch_goes_out_at_once(world, new):
    """Redis was wiped: everything sent before is gone."""
    send(world, new)
    assert world.due(epoch=world.now() - 60) == []
    assert whys(world.due(epoch=world.now() + 60)) == ["epoch"]


def test_a_send_is_as_old_as_its_beginning(world, new):
    """A flush between the send and the mark is seen."""
    send(world, new, age=3.0)
    assert whys(world.due(epoch=world.now() - 1.0)) == ["epoch"]


@pytest.mark.parametrize(
    ("heads", "is_gone"), [({}, False), ({"flujo.attempts": None}, True), ({"other": None}, False)]
)
def test_a_message_is_gone_only_when_its_queue_was_looked_at(world, new, heads, is_gone):
    send(world, new)
    world.pass_time(GONE_S + 0.5)
    assert whys(world.due(heads=heads)) == (["gone"] if is_gone else [])


@pytest.mark.parametrize(("younger_s", "is_gone"), [(-1.0, False), (1.0, True)])
def test_a_long_backlog_is_not_published_again(world, new, younger_s, is_gone):
    """A queue whose head is older than the message has not come to it yet."""
    send(world, new)
    sent_at = world.now()
    world.pass_time(GONE_S + 0.5)
    passed = GONE_S + 0.5 - (world.now() - sent_at)
    head = sent_at - passed + younger_s
    assert whys(world.due(heads={"flujo.attempts": head})) == (["gone"] if is_gone else [])


def test_patience_doubles_with_each_send_up_to_a_limit(world, new):
    send(world, new)
    empty = {"flujo.attempts": None}
    for sends in range(8):
        patience = GONE_S * 2 ** min(sends, 5)
        world.pass_time(patience - 1)
        assert world.due(heads=empty) == []
        world.pass_time(1.5)
        assert whys(world.due(heads=empty)) == ["gone"]


def test_only_ready_rows_are_marked_as_out(world):
    ready, running, ended = (world.record(enqueued()) for _ in range(3))
    world.claim(running)
    world.conclude(ended, succeeded(), fence=world.claim(ended))
    keys = [new.first.key for new in (ready, running, ended)]
    world.stores.backlog.mark_sent(dict.fromkeys([*keys, "run_none::a:1"], 0.0))
    assert [world.status(new) for new in (ready, running, ended)] == ["queued", "running", "succeeded"]


def test_marked_twice_is_marked_once(world, new):
    send(world, new)
    send(world, new)
    assert world.attempts(new.first.ticket.run)[0].sends == 1


def test_nothing_to_mark_is_nothing(world):
    world.stores.backlog.mark_sent({})


def test_poisoned_attempts_are_taken_under_a_fresh_fence(world, new):
    lose(world, new, MAX_LOST + 1)
    [(envelope, fence, _)] = world.poisoned()
    assert envelope == new.first
    assert fence == world.attempts(new.first.ticket.run)[0].fence == MAX_LOST + 2
    assert world.conclude(new, succeeded(), fence=fence - 1) == "stale"
    assert world.conclude(new, failed("system"), fence=fence) == "merged"
    assert world.poisoned() == []


def test_what_was_not_lost_often_enough_is_not_poisoned(world, new):
    lose(world, new, MAX_LOST)
    assert world.poisoned() == []


def test_what_is_held_is_not_poisoned(world, new):
    lose(world, new, MAX_LOST)
    world.due()
    world.claim(new, room="alone")
    assert world.poisoned() == []


def test_a_cancelled_run_is_not_poisoned(world, new):
    lose(world, new, MAX_LOST + 1)
    world.request_cancel(new.first.ticket.run)
    assert world.poisoned() == []


def test_no_more_is_poisoned_than_wanted(world):
    for _ in range(3):
        lose(world, world.record(enqueued()), MAX_LOST + 1)
    assert len(world.poisoned(2)) == 2


def test_a_poisoned_attempt_whose_taker_said_nothing_is_taken_again(world, new):
    """The answer was lost, or its taker stumbled over it: nothing may stay held by a worker that does not know it."""
    lose(world, new, MAX_LOST + 1)
    [(_, fence, _)] = world.poisoned()
    [(_, again, _)] = world.poisoned()
    assert again == fence + 1


def test_a_sweep_begins_once_in_a_period_whoever_asks(world):
    answers = []

    def ask(name):
        answers.append(world.stores.backlog.begin_sweep(name, 60.0))

    for _ in range(2):
        threads = [threading.Thread(target=ask, args=(f"w{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        world.pass_time(61.0)
    assert len(answers) == 16
    assert sum(answers) == 2


def test_an_epoch_began_when_it_was_first_seen(world):
    began = world.stores.backlog.epoch_start("abc")
    world.pass_time(10)
    assert world.stores.backlog.epoch_start("abc") == pytest.approx(began, abs=10.01)
    assert world.stores.backlog.epoch_start("def") - world.stores.backlog.epoch_start("abc") >= 9.9


def test_a_step_on_a_queue_of_its_own_is_looked_for_there(world):
    new = world.record(enqueued(pipeline_of("a", queue="gpu")))
    send(world, new)
    world.pass_time(GONE_S + 0.5)
    assert world.due(heads={"flujo.attempts": None}) == []
    assert whys(world.due(heads={"gpu": None})) == ["gone"]


def test_a_retry_is_due_after_its_backoff_and_never_claimable_under_the_old_key(world, new):
    decision = decided(new, failed(), fence=world.claim(new))
    world.commit(decision)
    world.pass_time(BACKOFF.base_s + 0.1)
    [due] = world.due()
    assert due.envelope == following(decision)
    assert world.refusal(new) == "ended"
