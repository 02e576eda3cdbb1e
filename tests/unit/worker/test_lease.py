"""The lease's thread against claims that answer while it asks: only work that was lost is cancelled."""

import threading
import time
from contextlib import contextmanager

import pytest

from flujo_worker.attempts.lease import Lease
from flujo_worker.ports import Member, Renewal

DEADLINE_S = 5.0


class Roll:
    """A store that answers as it is told to, and lets something happen before an answer arrives."""

    def __init__(self):
        self.renewals = []
        self.adopts = set()
        self.before_adopting = lambda: None
        self.is_settled = threading.Event()
        self.is_to_stop = False
        self.kept = set()

    def register_worker(self, member, lease_s, *, old=None, held=()):
        if old is not None:
            self.before_adopting()
        return self.adopts & set(held)

    def lost_among(self, worker, held):
        return set()

    def release_unowned(self, worker, kept, older_s):
        self.kept = set(kept)
        return set()

    def hand_back(self, worker, keys, *, is_broken):
        self.is_broken = is_broken
        return set(keys)

    def renew(self, worker, lease_s, held):
        if self.renewals:
            lost = self.renewals.pop(0)(held)
            return None if lost is None else Renewal(lost)
        self.is_settled.set()
        return Renewal(set(), self.is_to_stop)

    def deregister_worker(self, worker):
        pass

    def wait(self):
        """Wait until every told answer was given and acted upon: the renewal after the last one begins."""
        until = time.monotonic() + DEADLINE_S
        while self.renewals:
            assert time.monotonic() < until
            time.sleep(0.001)
        self.is_settled.clear()
        assert self.is_settled.wait(DEADLINE_S)


@pytest.fixture
def roll():
    return Roll()


@pytest.fixture
def lease(roll):
    lease = Lease(roll, Member("w", "host", 1, "build", 1), lease_s=1.0, renew_s=0.01).start()
    yield lease
    lease.stop()


@contextmanager
def working(lease, key, fence):
    held = lease.hold(key)
    held.fence = fence
    yield held
    lease.let_go(key)


def over(_held):
    return None


def test_what_a_new_incarnation_does_not_adopt_is_cancelled(roll, lease):
    """M-013, protocol rule 6."""
    with working(lease, "kept", 1) as kept, working(lease, "taken", 1) as taken:
        roll.adopts = {"kept"}
        roll.renewals.append(over)
        roll.wait()
        assert (kept.cancelled, taken.cancelled) == (False, True)


def test_a_claim_that_answers_during_an_adoption_is_not_cancelled(roll, lease):
    """M-013, law of design §5: it waited for the new incarnation and claimed under it; cancelled, no one would do its work."""
    with working(lease, "late", None) as late:
        roll.before_adopting = lambda: setattr(late, "fence", 1)
        roll.renewals.append(over)
        roll.wait()
        assert not late.cancelled


def test_a_key_held_again_is_not_cancelled_for_its_last_fence(roll, lease):
    """M-013: a renewal that was long under way tells of a fence that this process has since replaced itself."""
    with working(lease, "again", 1) as again:

        def claimed_meanwhile(held):
            again.fence = 2
            return set(held)

        roll.renewals.append(claimed_meanwhile)
        roll.wait()
        assert not again.cancelled


def test_a_lost_attempt_is_cancelled(roll, lease):
    """M-013, protocol rule 5."""
    with working(lease, "lost", 1) as lost:
        roll.renewals.append(set)
        roll.wait()
        assert lost.cancelled


def test_a_renewal_counts_from_when_it_was_begun(roll):
    """A process may be frozen while the answer is on its way: the lease that it grants may be over by then."""
    silent = []
    lease = Lease(
        roll,
        Member("w", "host", 1, "b", 1),
        lease_s=1.0,
        renew_s=0.01,
        on_renewed=lambda: silent.append(lease.silent_s),
    )
    roll.renewals.append(lambda held: time.sleep(0.1) or set())
    lease.start()
    roll.wait()
    lease.stop()
    assert silent[1] >= 0.1


def test_what_was_let_go_to_be_handed_back_is_not_disowned_meanwhile(roll, lease):
    """Disowned it would count as lost."""
    with working(lease, "held", 1):
        with working(lease, "ending", 1):
            lease.interrupt()
        roll.wait()
        roll.wait()
        assert roll.kept == {"held", "ending"}
        assert lease.hand_back() == {"ending"}
        roll.wait()
        roll.wait()
        assert roll.kept == {"held"}


def test_what_begins_while_all_is_interrupted_is_interrupted_too(lease):
    lease.interrupt()
    with working(lease, "late", 1) as late:
        assert late.interrupted
    assert lease.hand_back() == {"late"}


def test_a_broken_process_stays_broken_while_it_hands_back(roll, lease):
    lease.interrupt(is_broken=True)
    lease.interrupt()
    with working(lease, "suspect", 1):
        pass
    assert lease.hand_back() == {"suspect"}
    assert roll.is_broken


def test_a_request_to_stop_is_heard_once(roll):
    told = []
    lease = Lease(
        roll, Member("w", "host", 1, "b", 1), lease_s=1.0, renew_s=0.01, on_stop_request=lambda: told.append(1)
    )
    lease.start()
    roll.wait()
    assert told == []
    roll.is_to_stop = True
    for _ in range(3):
        roll.wait()
    lease.stop()
    assert told == [1]


def test_work_that_does_not_end_is_cancelled_again_and_told_of_once(roll, lease, caplog):
    caplog.set_level("INFO", logger="flujo_worker.attempts.lease")
    cancels = []
    with working(lease, "a", 1) as held:
        held.on_cancel = lambda: cancels.append("a")
        roll.renewals = [set, set, set]
        roll.wait()
    assert len(cancels) == 3
    assert [line for line in caplog.messages if "no longer belongs" in line] == [
        "attempt a no longer belongs to this worker"
    ]
