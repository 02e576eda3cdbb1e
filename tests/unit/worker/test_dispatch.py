"""The sender: a fan-out's chord is open before its members are out, and what does not go out is the sweeper's."""

from __future__ import annotations

from dataclasses import replace

from builders import enqueued

from flujo_worker.dispatch import Sender
from flujo_worker.domain.values import FanOut
from flujo_worker.errors import DispatchError

FIRST = enqueued(run_id="run").first
MEMBERS = [replace(FIRST, address=f"f/b{lane}", lanes={"f": lane}) for lane in range(3)]


class Post:
    """Writes down what goes out, until it is told to fail."""

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
