"""The units of durable attempts in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from flujo_client.contract.outcome import NO_USAGE, Fault, Usage
from flujo_client.serial import Packed
from flujo_worker.domain.budget import Amount, Reservation
from flujo_worker.domain.units import RecordedUnit, SettledUnit, Unit
from flujo_worker.ports import ClaimId, PrunedUnits
from flujo_worker.store.memory.budgets import BudgetsInMemory
from flujo_worker.store.memory.tables import InMemory, Tables


class UnitsInMemory(InMemory):
    """The port `UnitStore`."""

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

    def prune(
        self, older_s: float, after: tuple[str, str] = ("", ""), *, places: int, units: int, waits_s: float = 0.0
    ) -> PrunedUnits:
        known = sorted({(run, name.place) for run, name in self._t.units})
        looked_at = [each for each in known if each > after][:places]
        over = [each for each in looked_at if self._is_over(*each, self._t.aged(older_s, waits_s))]
        for request in [
            each for each, row in self._t.batch_requests.items() if (row.given.run, row.given.place) in over
        ]:
            del self._t.batch_requests[request]
        rows = [(each, row) for each, row in self._t.units.items() if (each[0], each[1].place) in over]
        pruned = [(each, row) for each, row in rows if row.is_certain or row.answer or row.asked][:units]
        for each, row in pruned:
            if row.is_certain:
                del self._t.units[each]
            else:
                self._t.units[each] = replace(row, answer=None, asked=None)
        return PrunedUnits(len(pruned), looked_at[-1] if len(looked_at) == places else None)

    def _is_over(self, run: str, place: str, older_s: float) -> bool:
        """Return whether the step of a place has ended so long ago, and none of its attempts is open."""
        address, step = place.split(":")[:2]
        attempts = [each for each in self._t.attempts_of(run) if (each.key.address, each.key.step) == (address, step)]
        since = self._t.clock() - older_s
        return all(each.ended_at is not None and each.ended_at < since for each in attempts)

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
        made = RecordedUnit(
            unit.name, unit.operation, unit.effect, *claim, answer=answer, usage=usage, asked=unit.asked
        )
        if before is not None:
            is_another = (before.key, before.fence, before.claim_id) != claim
            made = replace(made, tries=before.tries + is_another)
        self._t.units[unit.run, unit.name] = made
        now, (began, _) = self._t.clock(), self._t.unit_times.get((unit.run, unit.name), (self._t.clock(), None))
        self._t.unit_times[unit.run, unit.name] = (now, None) if answer is None else (began, now)
        return True
