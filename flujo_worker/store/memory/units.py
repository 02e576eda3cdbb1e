"""The units of durable attempts in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from flujo_client.contract.outcome import NO_USAGE, Fault, Usage
from flujo_client.serial import Packed
from flujo_worker.domain.budget import Amount, Reservation
from flujo_worker.domain.units import RecordedUnit, SettledUnit, Unit
from flujo_worker.ports import ClaimId
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

    def _settle(self, settled: SettledUnit) -> bool:
        unit, usage = settled.unit, settled.usage
        if not self._write(unit, settled.answer, usage):
            return False
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
        made = RecordedUnit(unit.name, unit.operation, unit.effect, *claim, answer=answer, usage=usage)
        if before is not None:
            is_another = (before.key, before.fence, before.claim_id) != claim
            made = replace(made, tries=before.tries + is_another)
        self._t.units[unit.run, unit.name] = made
        return True
