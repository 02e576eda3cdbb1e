"""The sender: a fan-out's chord is open before its members are out, and what does not go out is the sweeper's."""

import threading
import time
from dataclasses import replace

import pytest

from flujo_worker.domain.values import FanOut, NextAttempt
from flujo_worker.engine.dispatch import Sender
from flujo_worker.errors import DispatchError
from tests.support.builders import enqueued

FIRST = enqueued(run_id="run").first
MEMBERS = [replace(FIRST, address=f"f/b{lane}", lanes={"f": lane}) for lane in range(3)]


class Post:
    """Writes down what goes out, until it is told to fail."""

    counts_chords = True

    def __init__(self, broken=()):
        self.broken, self.out = broken, []

    def open_chord(self, run, fan_out, lanes):
        self._go("open_chord", run, fan_out, lanes)

    def send(self, envelopes, *, first=False):
        self._go("send first" if first else "send", *(envelope.key for envelope in envelopes))

    def _go(self, what, *rest):
        if what in self.broken:
            raise DispatchError("the broker is away")
        self.out.append((what, *rest))


class Backlog:
    """Keeps what was marked as sent."""

    def __init__(self):
        self.marked = {}

    def mark_sent(self, ages):
        self.marked.update(ages)


def sent(post, *args):
    """Send, stop, and give what was marked."""
    backlog = Backlog()
    sender = Sender(post, backlog).start()
    sender.send(*args)
    sender.stop()
    return backlog.marked


def test_a_chord_is_opened_before_its_members_go_out_together():
    """M-007: a part that is back before the size is known may be the last one."""
    post = Post()
    marked = sent(post, MEMBERS, FanOut("f", 3))
    keys = [each.key for each in MEMBERS]
    assert post.out == [("open_chord", "run", "f", 3), ("send", *keys)]
    assert set(marked) == set(keys)
    assert all(0 <= age < 5 for age in marked.values())


def test_what_follows_inside_a_branch_opens_nothing():
    """M-007: opened again, the chord would forget the parts it has rung for."""
    post = Post()
    sent(post, MEMBERS[:1])
    assert post.out == [("send", MEMBERS[0].key)]


def test_nothing_goes_out_under_a_chord_that_could_not_be_opened(caplog):
    post = Post(broken={"open_chord"})
    assert sent(post, MEMBERS, FanOut("f", 3)) == {}
    assert post.out == []
    assert "left to the sweeper" in caplog.text


def test_what_the_broker_does_not_take_is_not_marked(caplog):
    """A row that is not marked is published by the sweeper."""
    assert sent(Post(broken={"send"}), [FIRST]) == {}
    assert f"{FIRST.key} and the rest of its batch are left to the sweeper" in caplog.text


class Clocked(Post):
    """Also notes when a message went out, and says when all are out."""

    def __init__(self, awaited):
        super().__init__()
        self.at, self.are_out, self._awaited = {}, threading.Event(), awaited

    def send(self, envelopes, *, first=False):
        super().send(envelopes, first=first)
        self.at |= {envelope.key: time.monotonic() for envelope in envelopes}
        if len(self.at) == self._awaited:
            self.are_out.set()


def test_what_is_due_in_a_moment_goes_out_in_its_time_and_is_marked():
    """G6: not earlier, for a claim would not look at the time, and in the order of their times."""
    post, backlog = Clocked(3), Backlog()
    sender = Sender(post, backlog).start()
    began = time.monotonic()
    delays = dict(zip((member.key for member in MEMBERS), (1.0, 0.2, 0.6), strict=True))
    for member in MEMBERS:
        sender.send_later(member, delays[member.key])
    assert post.are_out.wait(60)
    sender.stop()
    assert all(post.at[key] - began >= delay for key, delay in delays.items())
    assert sorted(post.at, key=post.at.__getitem__) == sorted(delays, key=delays.__getitem__)
    assert set(backlog.marked) == set(delays)


def test_what_is_not_due_when_the_process_stops_is_left_to_the_sweeper():
    post, backlog = Post(), Backlog()
    sender = Sender(post, backlog).start()
    sender.send_later(FIRST, 3600)
    sender.stop()
    assert (post.out, backlog.marked) == ([], {})


@pytest.mark.parametrize(
    ("options", "after_s"),
    [
        ({}, 0.0),
        ({"delay_s": 0.1}, 0.1),
        ({"delay_s": 10.0}, 10.0),
        ({"delay_s": 11.0}, None),
        ({"held": True}, None),
        ({"delay_s": 1.0, "held": True}, None),
        ({"delay_s": 1.0, "question": {"message": "go?"}}, None),
    ],
)
def test_a_worker_times_short_waits_only(options, after_s):
    assert NextAttempt("", "a", 2, "queue", FIRST.input, None, 1, **options).sent_after_s == after_s
