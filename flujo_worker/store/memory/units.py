"""The units of durable attempts in memory, and the requests that are asked in batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from uuid import uuid4

from flujo_client.contract.outcome import NO_USAGE, Fault, Usage
from flujo_client.serial import Packed
from flujo_worker.domain.budget import Amount, Reservation
from flujo_worker.domain.units import BatchedRequest, HeldBatch, RecordedUnit, RequestState, SettledUnit, Unit
from flujo_worker.ports import ClaimId
from flujo_worker.store.memory.budgets import BudgetsInMemory
from flujo_worker.store.memory.rows import StoredRequest
from flujo_worker.store.memory.tables import InMemory, Tables


class UnitsInMemory(InMemory):
    def __init__(self, tables: Tables, budgets: BudgetsInMemory) -> None:
        super().__init__(tables)
        self._budgets = budgets

    def recorded(self, run: str, places: Collection[str]) -> list[RecordedUnit]:
        return [unit for (of, name), unit in self._t.units.items() if of == run and name.place in places]

    def begin(self, units: Sequence[Unit]) -> set[Unit]:
        return {unit for unit in units if self._write(unit)}

    def reserve(self, unit: Unit, holds: Sequence[Reservation]) -> Fault | None:
        if not self._may_write(unit):
            return None
        over = self._budgets.hold(unit.key, holds)
        if over is None:
            self._write(unit)
        return over

    def settle(self, settled: Sequence[SettledUnit]) -> set[Unit]:
        return {each.unit for each in settled if self._settle(each)}

    def _settle(self, settled: SettledUnit) -> bool:
        unit, usage = settled.unit, settled.usage
        if not self._write(unit, settled.answer, usage):
            return False
        row = self._t.attempts[unit.key]
        row.losses, row.losses_alone = row.losses - row.losses_alone, 0  # it has made progress
        if not usage.is_nothing:
            booked = ClaimId(unit.key, 0, unit.claim_id)
            self._t.spends[booked] = self._t.spends.get(booked, NO_USAGE) + usage
        if settled.holds:
            self._budgets.hold(unit.key, settled.holds)
            self._budgets.book(unit.run, unit.key, Amount.of(usage), frees=False)
        return True

    def _may_write(self, unit: Unit) -> bool:
        row, before = self._t.attempts.get(unit.key), self._t.units.get((unit.run, unit.name))
        if row is None or row.status != "running" or (row.fence, row.claim_id) != (unit.fence, unit.claim_id):
            return False
        return before is None or before.answer is None

    def _write(self, unit: Unit, answer: Packed | None = None, usage: Usage = NO_USAGE) -> bool:
        if not self._may_write(unit):
            return False
        before = self._t.units.get((unit.run, unit.name))
        claim = unit.key, unit.fence, unit.claim_id
        is_another = before is not None and (before.key, before.fence, before.claim_id) != claim
        tries = 1 if before is None else before.tries + is_another
        new = RecordedUnit(unit.name, unit.operation, unit.effect, *claim, tries, answer, usage, unit.asked)
        self._t.units[unit.run, unit.name] = new
        now, (began, _) = self._t.clock(), self._t.unit_times.get((unit.run, unit.name), (self._t.clock(), None))
        self._t.unit_times[unit.run, unit.name] = (now, None) if answer is None else (began, now)
        return True


@dataclass
class StoredBatch:
    """A batch, and who works on it."""

    id: str
    pool: str
    claim: ClaimId | None
    began: float
    due_at: float
    handle: Mapping[str, Any] | None = None


class BatchesInMemory(InMemory):
    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._batches: dict[str, StoredBatch] = {}

    def ask(self, request: BatchedRequest) -> RequestState:
        now = self._t.clock()
        row = self._t.batch_requests.setdefault(request.id, StoredRequest(request, now))
        left_s = row.asked_at + row.given.deadline_s - now
        return RequestState(row.batch is not None, row.result, now - row.asked_at, left_s)

    def take(
        self, pool: str, claim: ClaimId, *, wait_s: float, most: int, most_bytes: int | None = None
    ) -> HeldBatch | None:
        now = self._t.clock()
        due = [each for each in self._batches.values() if each.pool == pool and each.due_at <= now]
        for row in due:
            if not self._is_held(row):
                row.claim, row.due_at = claim, now + 1
                return HeldBatch(row.id, row.handle, row.began, is_new=False)
        asked = [each for each in self._t.batch_requests.values() if each.waits(pool, now)]
        waiting = [each for each in asked if self._t.run(each.given.run).ended_at is None][:most]
        if not waiting or (len(waiting) < most and waiting[0].asked_at > now - wait_s):
            return None
        made = StoredBatch(str(uuid4()), pool, claim, now, now + 1)
        self._batches[made.id] = made
        for each, size in zip(waiting, accumulate(each.given.size for each in waiting), strict=True):
            if most_bytes is None or size <= most_bytes:
                each.batch = made.id
        return HeldBatch(made.id, None, now, is_new=True)

    def _is_held(self, row: StoredBatch) -> bool:
        held = None if row.claim is None else self._t.attempts.get(row.claim.key)
        return held is not None and (held.status, held.claim_id) == ("running", row.claim and row.claim.claim_id)

    def requests(self, batch: str) -> list[tuple[str, Packed]]:
        return [(each.given.id, each.given.body) for each in self._open(batch)]

    def _open(self, batch: str) -> list[StoredRequest]:
        return [each for each in self._t.batch_requests.values() if each.batch == batch and each.result is None]

    def put_back(self, batch: str, claim: ClaimId, handle: Mapping[str, Any] | None, *, after_s: float) -> None:
        row = self._batches.get(batch)
        if row is not None and row.claim == claim:
            row.handle, row.due_at, row.claim = handle or row.handle, self._t.clock() + after_s, None

    def end(self, batch: str, results: Mapping[str, Packed], rest: Packed) -> None:
        self._batches.pop(batch, None)
        for row in self._open(batch):
            row.result = results.get(row.given.id, rest)
            address, step = row.given.place.split(":")[:2]
            for attempt in self._t.rows_at[row.given.run, address]:
                if attempt.key.step == step and attempt.status == "ready":
                    attempt.available_at = min(attempt.available_at, self._t.clock())
