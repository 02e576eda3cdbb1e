"""The fleet's settings of circuit breakers and rate limits in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from flujo_client.contract.limits import WAKE_S, Guard, GuardRow
from flujo_worker.store.memory.tables import Tables


class ModelGuardsInMemory(Tables):
    """The port `ModelGuards`, and what operators do."""

    def guard_rows(self) -> list[GuardRow]:
        with self._lock:
            return [self._guards[each] for each in sorted(self._guards)]

    def write_file_settings(self, rows: Sequence[GuardRow]) -> None:
        with self._lock:
            given = {(row.guard, row.model): row for row in rows}
            for place, row in list(self._guards.items()):
                self._guards[place] = replace(row, from_file=None)
                if row.edits is None and not row.cleared_at and place not in given:
                    del self._guards[place]
            for place, row in given.items():
                known = self._guards.get(place, row)
                self._guards[place] = replace(known, from_file=row.from_file)

    def edit_guard(
        self,
        guard: Guard,
        model: str,
        edits: Mapping[str, Any] | None = None,
        *,
        resets: bool = False,
        clears: bool = False,
    ) -> int:
        """Change what operators have set, as `flujo_client.gateway.operator_requests.edit_guard` does; return how many attempts were woken."""
        with self._lock:
            row = self._guards.get((guard, model), GuardRow(guard, model))
            kept = None if resets else row.edits
            merged = kept if edits is None else {**(kept or {}), **edits}
            cleared_at = self._clock() if clears else row.cleared_at
            self._guards[guard, model] = replace(row, edits=merged, cleared_at=cleared_at)
            at = self._clock() + WAKE_S
            woken = [
                row
                for row in self._attempts.values()
                if row.status == "ready" and row.available_at > at and _fits(row.waits_for, guard, model)
            ]
            for each in woken:
                each.available_at = at
            return len(woken)


def _fits(waits_for: str | None, guard: Guard, model: str) -> bool:
    its_guard, _, its_model = (waits_for or "").partition(" ")
    return its_guard == guard and (its_model == model or fnmatchcase(its_model, model))
