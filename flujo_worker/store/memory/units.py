"""The units of durable attempts in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from flujo_client.contract.outcome import NO_USAGE, Usage
from flujo_client.serial import Packed
from flujo_worker.domain.units import RecordedUnit, SettledUnit, Unit
from flujo_worker.ports import ClaimId
from flujo_worker.store.memory.tables import InMemory


class UnitsInMemory(InMemory):
    """The port `UnitStore`."""

    def recorded(self, run: str, places: Collection[str]) -> list[RecordedUnit]:
        return [unit for (of, name), unit in self._t.units.items() if of == run and name.place in places]

    def begin(self, units: Sequence[Unit]) -> set[Unit]:
        return {unit for unit in units if self._write(unit)}

    def settle(self, settled: Sequence[SettledUnit]) -> set[Unit]:
        return {each.unit for each in settled if self._write(each.unit, each.answer, each.usage)}

    def _write(self, unit: Unit, answer: Packed | None = None, usage: Usage = NO_USAGE) -> bool:
        row, before = self._t.attempts.get(unit.key), self._t.units.get((unit.run, unit.name))
        if row is None or row.status != "running" or (row.fence, row.claim_id) != (unit.fence, unit.claim_id):
            return False
        if before is not None and before.answer is not None:
            return False
        claim = unit.key, unit.fence, unit.claim_id
        made = RecordedUnit(unit.name, unit.operation, unit.effect, *claim, answer=answer, usage=usage)
        if before is not None:
            is_another = (before.key, before.fence, before.claim_id) != claim
            made = replace(made, tries=before.tries + is_another)
        self._t.units[unit.run, unit.name] = made
        if not usage.is_nothing:
            booked = ClaimId(unit.key, 0, unit.claim_id)
            self._t.spends[booked] = self._t.spends.get(booked, NO_USAGE) + usage
        return True
