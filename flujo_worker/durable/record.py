"""What was on record when a claim began; what changed first in a request that is not; and what nothing has asked for any more.

What is recorded of a unit begins with who asks; the parts of a request follow, each as `name: digest`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from flujo_client.serial import Packed
from flujo_worker.domain.nearest import nearest
from flujo_worker.domain.units import RecordedUnit, Unit, UnitName
from flujo_worker.durable.ledger import StoredUnits
from flujo_worker.durable.names import once_more
from flujo_worker.observe.log import emit

SHOWN: Final = 8
"""How many lines an event shows of what has changed."""


class Record:
    """The units that a claim finds, read at once when the first is asked.

    Args:
        units: reads them.
        run: the run's id.
        places: where they are.
    """

    def __init__(self, units: StoredUnits, run: str, places: Collection[str]) -> None:
        self._units, self._run, self._places = units, run, places
        self._loading: asyncio.Task[dict[UnitName, RecordedUnit]] | None = None
        self._met, self._told = set[UnitName](), set[str]()

    @property
    def met(self) -> int:
        """Return how many units were looked for."""
        return len(self._met)

    async def find(self, unit: Unit) -> tuple[Unit, RecordedUnit | None]:
        """Return what is on record of a unit. One whose answer is lost has none, and gets another name for its next one."""
        self._met.add(unit.name)
        known = (await self._all()).get(unit.name)
        if known is None or known.answer is None or not known.answer.is_reference:
            return unit, known
        unit, again = await self.find(once_more(unit))
        return unit, again or replace(known, answer=None)

    async def found_now(self, unit: Unit) -> RecordedUnit | None:
        """Return what is on record of a unit by now."""
        found = await self._units.recorded(unit.run, [unit.name.place])
        return next((each for each in found if each.name == unit.name), None)

    async def answers(self) -> list[Packed]:
        """Return all answers."""
        found = (each.answer for each in (await self._all()).values())
        return [each for each in found if each is not None and not each.is_reference]

    def emit_change(self, unit: Unit) -> None:
        """Emit how a request differs from the most similar one of those on record that nothing has asked for: for each asker the first time."""
        asker, *parts = _asked(unit)
        if not parts or asker in self._told:
            return
        trees = [_asked(each) for each in self._unasked() if each.operation == unit.operation]
        known = [rest for who, *rest in trees if who == asker]
        if known:
            self._told.add(asker)
            changed = nearest(parts, known).changed
            first = changed[0][1:].rpartition(": ")[0] if changed else "what it is part of"
            emit("unit.changed", "warning", operation=unit.operation, first=first, changed=changed[:SHOWN])

    def emit_unasked(self, askers: Collection[str]) -> None:
        """Emit the operations of what nothing has asked for, of those who have asked for any.

        What is inside a unit that was answered from record has an asker that did not run, and was not needed.
        """
        operations = Counter(each.operation for each in self._unasked() if _asked(each)[0] in askers)
        if operations:
            emit("unit.unasked", "warning", operations=dict(operations), count=operations.total())

    def _unasked(self) -> Iterator[RecordedUnit]:
        recorded = {} if self._loading is None else self._loading.result()
        return (each for name, each in recorded.items() if name not in self._met)

    async def _all(self) -> dict[UnitName, RecordedUnit]:
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
        return await asyncio.shield(self._loading)

    async def _load(self) -> dict[UnitName, RecordedUnit]:
        return {each.name: each for each in await self._units.recorded(self._run, self._places)}


def _asked(unit: Unit | RecordedUnit) -> list[str]:
    tree: list[str] = [""] if unit.asked is None else unit.asked.tree()
    return tree
