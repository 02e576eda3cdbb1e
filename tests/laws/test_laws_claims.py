"""The law of claims: whatever a crash of Postgres loses, no two executions are one, and at most one of them is merged.

Exhaustive: two workers claim one attempt, and each moment may bring a claim, a crash that loses the claims since the last flush, a worker
that is given up, a claim that is given back, or a merge by anyone who ever had it. Every order of these is tried, on the real store.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from uuid import UUID

import pytest

from flujo_worker.ports import ClaimId
from flujo_worker.store.memory import attempts
from flujo_worker.store.memory.rows import StoredAttempt
from flujo_worker.store.memory.stores import MemoryStores
from flujo_worker.store.memory.tables import Tables
from tests.support.breadth import examples
from tests.support.builders import decided, enqueued, member, succeeded

MOVES = 9 if examples(100) > 100 else 5
"""How many moves an order has; `make laws` tries the longer ones."""
WORKERS = ("w1", "w2")
NEW = enqueued()
KEY = NEW.first.key


@dataclass(frozen=True)
class Execution:
    """A claim that a worker believes in, for as long as it likes."""

    worker: str
    fence: int
    claim_id: str


class World:
    """One attempt in a store that may crash, and all that was ever begun with it."""

    def __init__(self):
        self.stores = MemoryStores(Tables(lambda: 1_800_000_000.0))
        for name in WORKERS:
            self.stores.leases.register_worker(member(name), 1e9)
        self.stores.client.record(NEW)
        self.row = self.stores.tables.attempts[KEY]
        self.executions: list[Execution] = []
        self.merged: list[Execution] = []
        self.flush()

    def flush(self):
        """All that was committed is on disk: a merge, or what gives a claim back, waits for that."""
        self.disk = copy.copy(self.row)

    def claim(self, worker):
        claim = self.stores.attempts.claim(KEY, worker, max_lost=9)
        if claim.refusal is None:
            self.executions.append(Execution(worker, claim.fence, claim.claim_id))

    def crash(self):
        """What was not on disk is lost; nobody who works on it knows."""
        vars(self.row).update(vars(self.disk))

    def give_up(self, worker):
        """The worker is frozen: another judges that its lease is over. Then it wakes as a new incarnation, under its name here."""
        self.stores.leases.deregister_worker(worker)
        self.stores.leases.register_worker(member(worker), 1e9)
        if self.row.status == "running" and self.row.worker == worker:
            self.row.worker = None
        self.flush()

    def give_back(self, execution):
        held = (self.row.status, self.row.claim_id)
        done = self.stores.attempts.defer(ClaimId(KEY, execution.fence, execution.claim_id), 0.0)
        assert done == (held == ("running", execution.claim_id)), "a claim was given back that another has"
        self.flush()

    def merge(self, execution):
        decision = decided(NEW, succeeded(execution.claim_id))
        notice = replace(decision.notice, fence=execution.fence, claim_id=execution.claim_id)
        if self.stores.attempts.commit(replace(decision, notice=notice)).verdict == "merged":
            self.merged.append(execution)
            assert self.row.claim_id == execution.claim_id, "the record names another execution"
        self.flush()

    def moves(self):
        """Return what may happen now, each with its name."""
        for worker in WORKERS:
            yield f"{worker} claims", lambda worker=worker: self.claim(worker)
            yield f"{worker} is given up", lambda worker=worker: self.give_up(worker)
        yield "crash", self.crash
        yield "flush", self.flush
        for number, each in enumerate(self.executions):
            yield f"execution {number} gives back", lambda each=each: self.give_back(each)
            yield f"execution {number} merges", lambda each=each: self.merge(each)

    def judge(self):
        assert len({each.claim_id for each in self.executions}) == len(self.executions), "two executions are one"
        assert len(self.merged) <= 1, "two executions were merged"

    def state(self):
        """Return what decides the future, with ids replaced by who has them: equal states need not be tried twice."""
        names = {each.claim_id: number for number, each in enumerate(self.executions)}
        rows = [(row.status, row.fence, row.worker, names.get(row.claim_id)) for row in (self.row, self.disk)]
        return (*rows, tuple((each.worker, each.fence) for each in self.executions), len(self.merged))


def after(path):
    """Return a world after these moves."""
    world = World()
    for name in path:
        dict(world.moves())[name]()
        world.judge()
    return world


def explore(moves):
    """Try every order of so many moves; return the worlds that differ."""
    found = {World().state(): ()}
    edge = [()]
    for _ in range(moves):
        paths = [(*path, name) for path in edge for name, _ in after(path).moves()]
        edge = []
        for path in paths:
            try:
                state = after(path).state()
            except AssertionError as error:
                raise AssertionError(f"{error}, after: {', '.join(path)}") from error
            if state not in found:
                found[state] = path
                edge.append(path)
    return list(found)


def test_no_order_of_claims_crashes_and_merges_merges_two_executions_or_makes_two_the_same():
    """Design §3, M-013: and the record names the one that was merged."""
    found = explore(MOVES)
    fences = [[fence for _, fence in executions] for _, _, executions, _ in found]
    assert any(len(set(each)) < len(each) for each in fences), "no crash has lost a claim"
    assert {merges for *_, merges in found} == {0, 1}
    print(f"{len(found)} worlds within {MOVES} moves")


def test_mutant_claims_known_by_their_fence_alone(monkeypatch):
    monkeypatch.setattr(StoredAttempt, "is_under", lambda self, fence, _: self.fence == fence)
    with pytest.raises(AssertionError, match="another"):
        explore(5)


def test_mutant_ids_that_are_not_drawn(monkeypatch):
    monkeypatch.setattr(attempts, "uuid4", lambda: UUID(int=0))
    with pytest.raises(AssertionError, match="two executions are one"):
        explore(4)
