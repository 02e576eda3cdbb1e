"""Leases: who is alive, what a new incarnation takes over, and what a worker learns when it renews."""

from dataclasses import replace

import pytest
from worlds import LEASE_S, MAX_LOST

from flujo_worker.ports import BrokerSnapshot, Renewal
from flujo_worker.store.shared_rules import HANDED_BACK_MOST, SUSPECT_AFTER
from tests.support.builders import enqueued, member, succeeded


@pytest.fixture
def new(world):
    return world.record(enqueued())


def test_a_renewed_lease_lives_on(world, new):
    world.claim(new)
    for _ in range(3):
        world.pass_time(LEASE_S - 1)
        assert world.stores.leases.renew("w1", LEASE_S, {new.first.key: 1}) == Renewal(set())
    assert world.due() == []


def test_a_renewal_tells_how_many_live_workers_consume_the_same_queues(world):
    leases, mine = world.stores.leases, replace(member("mine"), queues=("a", "b"))
    leases.register_worker(replace(member("late"), queues=("a",)), LEASE_S)
    world.pass_time(LEASE_S + 1)  # w1 and this one are gone
    for each in (mine, replace(member("same"), queues=("b",)), replace(member("other"), queues=("c",)), member("all")):
        leases.register_worker(each, LEASE_S)
    assert [leases.renew(name, LEASE_S, {}).sharing for name in ("mine", "other", "all")] == [3, 2, 4]
    leases.deregister_worker("same")
    assert leases.renew("mine", LEASE_S, {}).sharing == 2


def test_a_lease_that_is_over_cannot_be_renewed(world):
    world.pass_time(LEASE_S + 1)
    assert world.stores.leases.renew("w1", LEASE_S, {}) is None


@pytest.mark.parametrize("name", ["w1", "nobody"])
def test_a_retired_or_unknown_worker_cannot_renew(world, name):
    world.stores.leases.deregister_worker("w1")
    world.stores.leases.deregister_worker(name)
    assert world.stores.leases.renew(name, LEASE_S, {}) is None


def test_a_renewal_and_a_look_tell_what_is_no_longer_held(world):
    kept, ended, cancelled, taken = (world.record(enqueued()) for _ in range(4))
    held = {new.first.key: world.claim(new) for new in (kept, ended, cancelled, taken)}
    world.conclude(ended, succeeded())
    world.request_cancel(cancelled.first.ticket.run)
    held[taken.first.key] = 7
    gone = {ended.first.key, cancelled.first.key, taken.first.key, "run_none::a:1"}
    assert world.stores.leases.lost_among("w1", held | {"run_none::a:1": 1}) == gone
    assert world.stores.leases.renew("w1", LEASE_S, held | {"run_none::a:1": 1}) == Renewal(gone)


def test_a_new_incarnation_adopts_what_is_still_its_own(world):
    """The outcome that is being worked on will be merged: the attempt keeps its fence."""
    mine, ended, idle = (world.record(enqueued()) for _ in range(3))
    fence = world.claim(mine)
    world.conclude(ended, succeeded(), fence=world.claim(ended))
    world.pass_time(LEASE_S + 1)
    held = [mine.first.key, ended.first.key, idle.first.key, "run_none::a:1"]
    assert world.stores.leases.register_worker(member("w1~2"), LEASE_S, old="w1", held=held) == {mine.first.key}
    assert [due.envelope.key for due in world.due()] == [idle.first.key]
    assert world.conclude(mine, succeeded(), fence=fence) == "merged"


def test_what_another_has_taken_is_not_adopted(world, new):
    world.claim(new)
    world.pass_time(LEASE_S + 1)
    world.register_worker("w2")
    world.claim(new, "w2")
    assert world.stores.leases.register_worker(member("w1~2"), LEASE_S, old="w1", held=[new.first.key]) == set()


def test_what_was_marked_as_lost_is_not_adopted(world, new):
    world.claim(new)
    world.pass_time(LEASE_S + 1)
    world.register_worker("w2")
    world.due()
    assert world.stores.leases.register_worker(member("w1~2"), LEASE_S, old="w1", held=[new.first.key]) == set()


def test_what_an_old_incarnation_did_not_hold_any_more_is_lost(world, new):
    world.claim(new)
    world.stores.leases.register_worker(member("w1~2"), LEASE_S, old="w1", held=[])
    assert [due.why for due in world.due()] == ["lost"]


def test_an_old_incarnation_is_over_at_once(world, new):
    world.stores.leases.register_worker(member("w1~2"), LEASE_S, old="w1")
    assert world.refusal(new, "w1") == "unleased"


def test_to_enlist_again_after_a_lost_answer_gives_the_same_answer(world, new):
    world.claim(new)
    first = world.stores.leases.register_worker(member("w1~2"), LEASE_S, old="w1", held=[new.first.key])
    assert (
        world.stores.leases.register_worker(member("w1~2"), LEASE_S, old="w1", held=[new.first.key])
        == first
        == {new.first.key}
    )
    assert world.stores.leases.renew("w1~2", LEASE_S, {new.first.key: 1}) == Renewal(set())


def test_retire_frees_what_is_still_held(world, new):
    world.claim(new)
    world.stores.leases.deregister_worker("w1")
    assert [due.why for due in world.due()] == ["lost"]


def test_what_no_one_works_on_is_disowned_and_counts_as_lost(world):
    """Law 6: an attempt whose outcome was refused under its own fence does not stay running for as long as its worker lives."""
    forgotten, kept = world.record(enqueued()), world.record(enqueued())
    for new in (forgotten, kept):
        world.claim(new)
    assert world.stores.leases.release_unowned("w1", {kept.first.key}, older_s=1.0) == set()
    world.pass_time(2.0)
    assert world.stores.leases.release_unowned("w2", set(), older_s=1.0) == set()
    assert world.stores.leases.release_unowned("w1", {kept.first.key}, older_s=1.0) == {forgotten.first.key}
    assert [(each.why, each.envelope.key) for each in world.due()] == [("lost", forgotten.first.key)]


def test_one_whose_own_lease_is_over_calls_no_one_dead(world):
    """M-013, protocol rule 6: it may have been suspended with all the others, after it found that it may judge."""
    suspended, poison = world.record(enqueued()), world.record(enqueued())
    world.claim(suspended)
    for losses in range(MAX_LOST + 1):
        world.register_worker(f"lost{losses}", lease_s=0.5)
        world.claim(poison, f"lost{losses}", room="alone")
        world.pass_time(1.0)
        assert [due.why for due in world.due()] == ["lost"] * (losses < MAX_LOST)
    world.register_worker("w2")
    world.pass_time(LEASE_S + 1)
    assert world.stores.backlog.due(BrokerSnapshot(0.0, {}), judge="w2", max_lost=MAX_LOST, limit=9) == []
    assert world.stores.backlog.poisoned(judge="w2", max_lost=MAX_LOST, limit=9) == []
    world.stores.leases.register_worker(member("w2~2"), LEASE_S, old="w2")
    assert world.stores.backlog.due(BrokerSnapshot(0.0, {}), judge="w2", max_lost=MAX_LOST, limit=9) == []
    assert [due.envelope.key for due in world.due()] == [suspended.first.key]
    assert [each.envelope.key for each in world.poisoned()] == [poison.first.key]


def test_what_a_worker_ran_whose_process_is_gone_goes_out_at_once(world, new):
    """No one need judge its lease, which lives; the attempt keeps its number and has been lost once (M-013)."""
    fence = world.claim(new)
    assert world.stores.leases.neighbours("host") == [("w1", 1)]
    assert world.stores.leases.bury("w1", MAX_LOST) == {new.first.key}
    assert world.stores.leases.neighbours("host") == []
    assert [(due.why, due.envelope.key) for due in world.due(may_judge=False)] == [("ready", new.first.key)]
    assert world.conclude(new, succeeded(), fence=fence) == "stale"
    [lost] = [event for event in world.setting.read_events(new.first.ticket.run) if event.name == "attempt.lost"]
    assert lost.data == {"worker": "w1", "losses": 1, "losses_alone": 0}


def test_a_worker_is_buried_once(world, new):
    world.claim(new)
    world.stores.leases.bury("w1", MAX_LOST)
    assert world.stores.leases.bury("w1", MAX_LOST) == set()
    assert world.stores.leases.bury("nobody", MAX_LOST) == set()


def test_what_was_lost_too_often_or_is_to_stop_does_not_go_out_again(world):
    """That is for the sweep, which fails the one and winds the other down."""
    deadly, cancelled = world.record(enqueued()), world.record(enqueued())
    world.claim(deadly, room="alone")
    world.claim(cancelled)
    world.request_cancel(cancelled.first.ticket.run)
    assert world.stores.leases.bury("w1", 0) == set()
    assert world.due(may_judge=False) == []


@pytest.mark.parametrize("lease", ["lives", "is over"])
def test_neighbours_are_those_of_the_host_that_run_something(world, new, lease):
    """Also one whose lease ran out before its successor was up: that one may not judge leases yet."""
    world.stores.leases.register_worker(replace(member("w7"), host="other"), LEASE_S)
    world.register_worker("w8")
    world.claim(world.record(enqueued()), "w7")
    world.claim(new)
    if lease == "is over":
        world.pass_time(LEASE_S + 1)
    assert world.stores.leases.neighbours("host") == [("w1", 1)]
    assert world.stores.leases.bury("w1", MAX_LOST) == {new.first.key}


def test_what_a_worker_hands_back_goes_out_at_once_and_is_not_lost(world, new):
    """However often its workers stop, an attempt stays free of suspicion; what the one before does later is not merged."""
    for _ in range(3 * MAX_LOST):
        fence = world.claim(new)
        assert world.stores.leases.hand_back("w1", [new.first.key, "run_none::a:1"]) == {new.first.key}
        assert [(due.why, due.envelope.key) for due in world.due(may_judge=False)] == [("ready", new.first.key)]
        assert world.conclude(new, succeeded(), fence=fence) == "stale"
    told = [event for event in world.setting.read_events(new.first.ticket.run) if event.name == "attempt.handed_back"]
    assert [event.data for event in told] == [{"worker": "w1", "times": times + 1} for times in range(3 * MAX_LOST)]
    assert [event.level for event in told] == ["info", "info", *["warning"] * (3 * MAX_LOST - 2)]
    assert world.conclude(new, succeeded(), fence=world.claim(new)) == "merged"


def test_what_a_broken_worker_hands_back_is_suspected_and_not_lost(world, new):
    """M-013: whichever of its attempts broke it, none can break another worker more than twice. What it had not begun did nothing."""
    taken = world.record(enqueued())
    for _ in range(SUSPECT_AFTER):
        world.claim(new)
        world.stores.backlog.mark_sent({taken.first.key: 0.0})
        keys = {new.first.key, taken.first.key}
        assert world.stores.leases.hand_back("w1", keys, is_broken=True) == keys
    assert world.stores.attempts.claim(new.first.key, "w1", max_lost=MAX_LOST).refusal == "suspect"
    assert world.claim(taken) == 1
    assert world.conclude(new, succeeded(), fence=world.claim(new, room="apart")) == "merged"


def test_an_attempt_that_is_handed_back_very_often_is_lost_in_the_end(world, new):
    """It may be what stops its workers: so it does not go round forever."""
    for _ in range(HANDED_BACK_MOST):
        world.claim(new)
        assert world.stores.leases.hand_back("w1", [new.first.key]) == {new.first.key}
    for losses in range(MAX_LOST):
        world.claim(new, room="shared" if losses < SUSPECT_AFTER else "alone")
        assert world.stores.leases.hand_back("w1", [new.first.key]) == set()
        assert [(due.why, due.envelope.key) for due in world.due()] == [("lost", new.first.key)]
    world.claim(new, room="alone")
    assert world.stores.leases.hand_back("w1", [new.first.key]) == set()
    assert world.due() == []
    assert [each.envelope.key for each in world.poisoned()] == [new.first.key]


def test_a_worker_hands_back_a_message_that_it_has_not_claimed(world, new):
    world.stores.backlog.mark_sent({new.first.key: 0.0})
    assert world.stores.leases.hand_back("w1", [new.first.key]) == {new.first.key}
    assert [due.envelope.key for due in world.due(may_judge=False)] == [new.first.key]


def test_what_another_works_on_or_has_ended_is_not_handed_back(world):
    taken, ended = world.record(enqueued()), world.record(enqueued())
    world.register_worker("w2")
    world.claim(taken, "w2")
    world.conclude(ended, succeeded(), fence=world.claim(ended))
    assert world.stores.leases.hand_back("w1", [taken.first.key, ended.first.key]) == set()
    assert world.due(may_judge=False) == []
