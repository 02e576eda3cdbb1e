"""Chords whose membership is derived from lanes, through our own publishing code and tasks, on a real Redis and a real worker.

A toy stands in for the engine: it knows a program, writes a journal, and publishes what follows. What is looked at is the way out
and back: that each attempt and each join is delivered exactly once, however deep they are nested.
"""

import threading
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from celery.contrib.testing.worker import start_worker

from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import TASK_JOIN, Envelope, JoinSignal
from flujo_client.transport.wire import register
from flujo_worker.attempts.isolation import DeliveryResult
from flujo_worker.celery_app.app import _carry
from flujo_worker.celery_app.own_app import own_app
from flujo_worker.domain.values import FanOut
from flujo_worker.engine.dispatch import RedisPublisher, Sender
from tests.support.builders import enqueued
from tests.support.fleet import wait_until

pytestmark = pytest.mark.services

DEEP = {
    "first": None,
    "outer": {
        "left": {"a": None, "middle": {"up": {"b": None}, "down": {"inner": {"x": {"c": None}, "y": {"d": None}}}}},
        "right": {"e": None},
        "long": {"f": None, "g": None},
    },
    "last": None,
}
"""Steps by name, and fan-outs with their branches, three levels deep. One branch begins with a fan-out, one has a single step."""

STEPS = {"first", "a", "b", "c", "d", "e", "f", "g", "last"}
JOINS = {"outer", "outer/left/middle", "outer/left/middle/down/inner"}


class Toy:
    """Walks through a program in place of the engine.

    Args:
        post: the way out.
        program: what each run does.
        lanes: how many branches of a fan-out run at a time.
    """

    def __init__(self, post, program, lanes=1000):
        self.sender, self.program, self.lanes = Sender(post, None), program, lanes
        self.done, self.journal = Counter(), defaultdict(Counter)
        self.held, self.lock = defaultdict(list), threading.Lock()

    def start(self, runs):
        for _ in range(runs):
            self.go_on(enqueued().first, self.program, at=0)

    def deliver(self, task, wire, *, task_id):
        return (self.join if task == TASK_JOIN else self.attempt)(wire, task_id=task_id)

    def attempt(self, wire, *, task_id):
        envelope = Envelope.from_wire(wire)
        assert envelope.key == task_id
        program = self.at(envelope.address)
        place = list(program).index(envelope.step)
        if envelope.kind == "start":
            return DeliveryResult("merged", self.go_on(envelope, program, at=place))
        self.journal[envelope.ticket.run][envelope.step] += 1
        return DeliveryResult("merged", self.go_on(envelope, program, at=place + 1))

    def join(self, wire, *, task_id):
        join_signal = JoinSignal.from_wire(wire)
        assert join_signal.key == task_id
        self.journal[join_signal.run][join_signal.address] += 1
        above = join_signal.address.removesuffix(join_signal.step).removesuffix("/")
        program = self.at(above)
        here = replace(enqueued().first, address=above, lanes=self.lanes_at(join_signal.run, above))
        here = replace(here, ticket=replace(here.ticket, run=join_signal.run))
        return DeliveryResult("merged", self.go_on(here, program, at=list(program).index(join_signal.step) + 1))

    def go_on(self, before, program, *, at):
        """Publish what stands at this place of a sequence; tell whether the lane is empty after it."""
        run, address = before.ticket.run, before.address
        if at == len(program):
            return self.close(before)
        name, branches = list(program.items())[at]
        if branches is None:
            self.sender.send([replace(before, step=name, kind="step")])
            return False
        fan_out = f"{address}/{name}".removeprefix("/")
        members = []
        for lane, key in enumerate(branches):
            [begin, inner], *_ = branches[key].items()
            kind = "step" if inner is None else "start"
            lanes = {**before.lanes, fan_out: min(lane, self.lanes - 1)}
            members.append(replace(before, address=f"{fan_out}/{key}", step=begin, kind=kind, lanes=lanes))
        self.held[run, fan_out] = members[self.lanes :]
        self.sender.send(members[: self.lanes], FanOut(fan_out, min(self.lanes, len(members))))
        return False

    def close(self, before):
        if not before.lanes:
            self.done[before.ticket.run] += 1
            return False
        fan_out = max(before.lanes, key=len)
        with self.lock:
            held = self.held[before.ticket.run, fan_out]
            following = held.pop(0) if held else None
        if following is not None:
            self.sender.send([replace(following, lanes={**following.lanes, fan_out: before.lanes[fan_out]})])
        return following is None

    def at(self, address):
        program = self.program
        names = address.split("/") if address else []
        for name in names:
            program = program[name]
        return program

    def lanes_at(self, run, address):
        """The lanes of a branch: those of this toy are its places, as long as none are held back."""
        names, lanes = (address.split("/") if address else []), {}
        for depth in range(0, len(names), 2):
            branches = self.at("/".join(names[: depth + 1]))
            lanes["/".join(names[: depth + 1])] = list(branches).index(names[depth + 1])
        return lanes


@pytest.fixture(scope="module")
def worker(redis_url):
    """A worker in this process, with our tasks; the one-item list holds the toy that they are carried out by."""
    settings = Settings(database_url="postgresql://nowhere/none", broker_url=redis_url)
    register()
    app, toys = own_app(settings), []
    _carry(app, lambda: toys[-1], lambda: None, lambda: settings)
    queues = ["flujo.attempts", "flujo.control"]
    with start_worker(app, pool="threads", concurrency=4, queues=queues, perform_ping_check=False, loglevel="WARNING"):
        yield RedisPublisher(settings, app), toys
    app.close()


@pytest.fixture
def toy_of(worker):
    post, toys = worker

    def make(program, **rest):
        toys.append(Toy(post, program, **rest))
        return toys[-1]

    return make


def test_three_levels_deep_each_attempt_and_each_join_is_delivered_once(toy_of):
    """M-007: no stored membership, no `replace`; inner joins are parts of the outer chords."""
    toy = toy_of(DEEP)
    toy.start(20)
    wait_until(lambda: len(toy.done) == 20, what=lambda: f"{toy.done} {toy.journal}")
    assert set(toy.done.values()) == {1}
    assert [set(journal) for journal in toy.journal.values()] == [STEPS | JOINS] * 20
    assert {count for journal in toy.journal.values() for count in journal.values()} == {1}


def test_branches_that_share_a_lane_are_one_part(toy_of):
    """M-007, max_concurrency: whoever closes a branch and hands its lane on is not counted; the last one is."""
    toy = toy_of({"wide": {str(n): {f"s{n}": None} for n in range(7)}, "end": None}, lanes=2)
    toy.start(5)
    wait_until(lambda: len(toy.done) == 5, what=lambda: f"{toy.done} {toy.journal}")
    assert all(journal["wide"] == journal["end"] == 1 for journal in toy.journal.values())
    assert all(journal[f"s{n}"] == 1 for journal in toy.journal.values() for n in range(7))


def test_a_member_that_fails_does_not_spoil_its_chord(toy_of, monkeypatch):
    """M-007, C-23: an error in a delivery is not a part; the same work delivered again is, and the join runs with all parts."""
    toy = toy_of({"pair": {"l": {"ok": None}, "r": {"broken": None}}})
    refused, attempt = [], toy.attempt

    def breaks_once(wire, *, task_id):
        if wire["step"] == "broken" and not refused:
            refused.append(wire)
            raise OSError("the store is away")
        return attempt(wire, task_id=task_id)

    monkeypatch.setattr(toy, "attempt", breaks_once)
    toy.start(1)
    wait_until(lambda: refused and toy.journal[refused[0]["run"]]["ok"])
    toy.sender.send([Envelope.from_wire(refused[0])])
    wait_until(lambda: toy.done, what=lambda: f"{toy.journal}")
    assert toy.journal[refused[0]["run"]] == {"ok": 1, "broken": 1, "pair": 1}
