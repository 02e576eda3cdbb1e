"""The leases of workers in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flujo_worker.ports import Member, Renewal
from flujo_worker.store.memory.limits import LimitsInMemory
from flujo_worker.store.memory.rows import StoredAttempt
from flujo_worker.store.memory.scopes import ScopesInMemory
from flujo_worker.store.memory.tables import InMemory, Tables
from flujo_worker.store.shared_rules import HANDED_BACK_MOST, HANDED_BACK_OFTEN


class LeasesInMemory(InMemory):
    def __init__(self, tables: Tables, limits: LimitsInMemory, scopes: ScopesInMemory) -> None:
        super().__init__(tables)
        self._limits, self._scopes = limits, scopes

    def register_worker(
        self, member: Member, lease_s: float, *, old: str | None = None, held: Collection[str] = ()
    ) -> set[str]:
        self._t.leases[member.id] = self._t.clock() + lease_s
        self._t.members[member.id] = member
        self._t.started.setdefault(member.id, self._t.started.get(old or "", self._t.clock()))
        if old is not None:
            self._t.leases.pop(old, None)
            self._t.loaded[member.id] = self._t.loaded.pop(old, set())
        rows = [self._t.attempts[key] for key in held if key in self._t.attempts]
        running = [row for row in rows if row.status == "running" and row.worker in (old, member.id)]
        crowded = self._limits.without_place({str(row.key) for row in running})
        adopted = [row for row in running if str(row.key) not in crowded]
        for row in adopted:
            row.worker = member.id
        return {str(row.key) for row in adopted}

    def renew(self, worker: str, lease_s: float, held: Mapping[str, int]) -> Renewal | None:
        if not self._t.is_leased(worker):
            return None
        self._t.leases[worker] = self._t.clock() + lease_s
        sharing = sum(self._shares(worker, each) for each in self._t.leases)
        return Renewal(self.lost_among(worker, held), sharing=sharing)

    def _shares(self, worker: str, other: str) -> bool:
        mine, theirs = (self._t.members[each].queues for each in (worker, other))
        return self._t.is_leased(other) and (mine is None or theirs is None or not set(mine).isdisjoint(theirs))

    def lost_among(self, worker: str, held: Mapping[str, int]) -> set[str]:
        return {key for key, fence in held.items() if not self._is_held(key, fence, worker)}

    def release_unowned(
        self, worker: str, kept: Collection[str], older_s: float, *, how: str | None = None
    ) -> set[str]:
        before = self._t.clock() - older_s
        mine = [row for row in self._t.attempts.values() if (row.status, row.worker) == ("running", worker)]
        gone = [row for row in mine if str(row.key) not in kept and (row.started_at or 0.0) < before]
        for row in gone:
            row.note_loss(self._t.clock(), how, is_gone=how is not None)
            row.worker = None
        return {str(row.key) for row in gone}

    def hand_back(self, worker: str, keys: Collection[str], *, is_broken: bool = False) -> set[str]:
        rows = [self._t.attempts[key] for key in sorted(keys) if key in self._t.attempts]
        mine = [row for row in rows if row.status == "queued" or (row.status, row.worker) == ("running", worker)]
        for row in mine:
            row.suspicions += is_broken and row.status == "running"
            times = self._count_handed_back(row, worker) if row.status == "running" else 0
            if row.status == "running":
                row.wait_no_more()
            if times <= HANDED_BACK_MOST:
                row.move("ready")
            else:
                row.note_loss(self._t.clock(), is_gone=False)
            row.worker, row.available_at, row.sends = None, self._t.clock(), 0
        return {str(row.key) for row in mine if row.status == "ready"}

    def deregister_worker(self, worker: str) -> None:
        self._t.leases.pop(worker, None)
        self._t.started.pop(worker, None)
        self._t.loaded.pop(worker, None)

    def neighbours(self, host: str) -> list[tuple[str, int]]:
        at_work = {row.worker for row in self._t.attempts.values() if row.status == "running"}
        members = [self._t.members[worker] for worker in self._t.leases if worker in at_work]
        return [(each.id, each.pid) for each in members if each.host == host]

    def bury(self, worker: str, max_lost: int) -> set[str]:
        if self._t.leases.pop(worker, None) is None:
            return set()
        mine = [row for row in self._t.attempts.values() if (row.status, row.worker) == ("running", worker)]
        freed = [row for row in mine if not row.is_poison(max_lost) and self._t.may_run(self._t.runs[row.key.run])]
        for row in freed:
            row.lose(self._t.clock())
            row.wait_no_more()
            row.move("ready")
            self._t.add_republish_event(row, "lost")
            row.worker, row.available_at, row.sends = None, self._t.clock(), 0
        return {str(row.key) for row in freed}

    def _is_held(self, key: str, fence: int, worker: str) -> bool:
        row = self._t.attempts.get(key)
        if row is None or self._t.runs[row.key.run].stopped_at is not None:
            return False
        lanes = self._t.scopes[row.key.run, row.key.address].lanes
        if self._scopes.aborted_among([(row.key.run, each) for each in lanes]):
            return False
        return (row.status, row.fence, row.worker) == ("running", fence, worker)

    def _count_handed_back(self, row: StoredAttempt, worker: str) -> int:
        name, key = "attempt.handed_back", str(row.key)
        times = 1 + sum((each.attempt, each.name) == (key, name) for each in self._t.events)
        level = "info" if times < HANDED_BACK_OFTEN else "warning"
        self._t.add_event(row.key.run, key, name, level, {"worker": worker, "times": times})
        return times
