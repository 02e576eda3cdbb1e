"""The law of losses: however many steps kill their process, no other step fails for it, and each of them does in the end.

Over fleets of workers, some of which are containers where all processes die together. Which message is delivered to whom, and what
dies with what, is drawn; who may run what, and what a loss counts as, is the store's to say.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flujo_worker.attempts import isolation
from flujo_worker.ports import BrokerSnapshot
from flujo_worker.recovery.quarantine import PLACES
from flujo_worker.store.memory.rows import StoredAttempt
from flujo_worker.store.memory.stores import MemoryStores
from flujo_worker.store.memory.tables import Tables
from tests.support.breadth import examples
from tests.support.builders import decided, enqueued, failed, member, succeeded

MAX_LOST = 2
LONG = 6
"""Ticks that an innocent step takes; a killer has killed its process before."""
LEASE_S = 1e9
JUDGE = "judge"
lawful = settings(max_examples=examples(60), deadline=None, database=None)


@dataclass(eq=False)
class Process:
    """A worker, or one that runs a suspect for it."""

    name: str
    running: dict[str, int] = field(default_factory=dict)
    parent: Process | None = None
    waiting: str | None = None


class Fleet:
    """Workers that die and are replaced, and the attempts they are given."""

    def __init__(self, seed, *, innocents, killers, workers, containers):
        self.draw, self.now = random.Random(seed), 1_800_000_000.0
        self.names = itertools.count()
        self.stores, self.containers = MemoryStores(Tables(lambda: self.now)), containers
        self.stores.leases.register_worker(member(JUDGE), LEASE_S)
        self.orders = {each.first.key: each for each in (enqueued() for _ in range(innocents + killers))}
        for each in self.orders.values():
            self.stores.client.record(each)
        self.killers = set(self.draw.sample(sorted(self.orders), killers))
        self.queue, self.processes, self.ended, self.begun = [], [], {}, dict.fromkeys(self.orders, 0)
        self.workers = [self.process() for _ in range(workers)]

    def process(self, parent=None):
        made = Process(f"p{next(self.names)}", parent=parent)
        self.processes.append(made)
        self.stores.leases.register_worker(member(made.name), LEASE_S)
        return made

    def tick(self):
        self.now += 10.0
        for envelope, fence, _ in self.stores.backlog.poisoned(judge=JUDGE, max_lost=MAX_LOST, limit=100):
            self.stores.attempts.commit(decided(self.orders[envelope.key], failed("system"), fence=fence))
            self.ended[envelope.key] = "lost"
        due = self.stores.backlog.due(BrokerSnapshot(0.0, {}), judge=JUDGE, max_lost=MAX_LOST, limit=100)
        self.queue += [each.envelope.key for each in due]
        self.draw.shuffle(self.queue)
        for key in [self.queue.pop() for _ in range(self.draw.randint(0, len(self.queue)))]:
            self.deliver(key, self.draw.choice(self.workers))
        for process in list(self.processes):
            self.work(process)

    def deliver(self, key, worker):
        if worker.waiting is not None:  # someone is to have it for itself
            self.queue.append(key)
            return
        refusal = self.begin(key, worker, "shared")
        if refusal is None or refusal.refusal != "suspect":
            return
        children = [each for each in self.processes if each.parent is worker]
        if refusal.in_company >= isolation.ALONE_AFTER:
            worker.waiting = key
        elif len(children) < PLACES:
            self.begin(key, self.process(worker), "apart")
        else:
            self.queue.append(key)

    def begin(self, key, process, room):
        claim = self.stores.attempts.claim(key, process.name, max_lost=MAX_LOST, room=room)
        if claim.fence is None:
            return claim
        process.running[key] = 0
        self.begun[key] += 1
        return None

    def work(self, process):
        """Let time pass in a process, unless it has died meanwhile."""
        children = [each for each in self.processes if each.parent is process]
        if process.waiting is not None and not process.running and not children:
            refused = self.begin(process.waiting, process, "alone")
            process.waiting = process.waiting if refused is None else None
        for key in sorted(process.running):
            if process not in self.processes:
                return
            process.running[key] += 1
            if key in self.killers and process.running[key] >= self.draw.randint(1, LONG - 1):
                self.die(process)
            elif process.running[key] == LONG:
                self.conclude(key, process)

    def conclude(self, key, process):
        del process.running[key]
        row = self.stores.tables.attempts[key]
        assert self.stores.attempts.commit(decided(self.orders[key], succeeded(), fence=row.fence)).verdict == "merged"
        self.ended[key] = "succeeded"
        process.waiting = None if process.waiting == key else process.waiting
        if process not in self.workers:
            self.processes.remove(process)

    def die(self, process):
        """It dies; in a container it may take the others with it, and then no one is left to say whose fault it was."""
        family = [process]
        parent = process.parent if process.parent in self.processes else None
        if self.containers and (parent is None or self.draw.random() < self.containers):
            family = [
                each
                for each in self.processes
                if each in (parent or process, process) or each.parent is (parent or process)
            ]
        elif parent is not None:
            self.now += 0.1
            self.stores.leases.release_unowned(process.name, (), 0.0)
        for each in family:
            self.stores.leases.deregister_worker(each.name)
            self.processes.remove(each)
            if each.waiting not in (None, *each.running):  # its message is gone: a sweep would send it again
                self.queue.append(each.waiting)
            if each in self.workers:
                self.workers[self.workers.index(each)] = self.process()


def nobody_fails_for_another(seed, **fleet):
    site = Fleet(seed, **fleet)
    for _ in range(200 * (1 + len(site.orders))):
        if len(site.ended) == len(site.orders):
            break
        site.tick()
    assert site.ended == {key: "lost" if key in site.killers else "succeeded" for key in site.orders}
    most = 2 * isolation.ALONE_AFTER + MAX_LOST + 1
    assert all(site.begun[key] <= most for key in site.killers), site.begun


FLEETS = {
    "innocents": st.integers(0, 6),
    "killers": st.integers(0, 8),
    "workers": st.integers(1, 3),
    "containers": st.sampled_from([0.0, 0.5, 1.0]),
}


@lawful
@given(st.integers(0, 10**6), st.fixed_dictionaries(FLEETS))
def test_no_number_of_killers_makes_another_attempt_fail_as_lost(seed, fleet):
    """M-013, C-37: and every killer fails, after a bounded number of processes."""
    nobody_fails_for_another(seed, **fleet)


def test_mutant_who_counts_every_loss_as_the_attempts_own(monkeypatch):
    monkeypatch.setattr(StoredAttempt, "is_own_loss", property(lambda _: True))
    with pytest.raises(AssertionError):
        nobody_fails_for_another(3, innocents=6, killers=8, workers=1, containers=1.0)


def test_mutant_who_never_has_a_container_for_itself(monkeypatch):
    """A killer that takes the container along would be no one's fault forever."""
    monkeypatch.setattr(isolation, "ALONE_AFTER", 10**6)
    with pytest.raises(AssertionError):
        nobody_fails_for_another(3, innocents=1, killers=1, workers=1, containers=1.0)
