"""What was on record when a claim began; what changed first in a request that is not; what nothing has asked for any more; and how much may be there.

What is recorded of a unit begins with who asks; the parts of a request follow, each as `name: digest`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, Final, NoReturn

from flujo_client.config.models import SizeLimits
from flujo_client.errors import NonRetryableError, SerializationError
from flujo_client.serial import Packed, encode
from flujo_worker.domain.nearest import nearest
from flujo_worker.domain.units import RecordedUnit, Unit, UnitName
from flujo_worker.durable.ledger import StoredUnits
from flujo_worker.durable.names import once_more
from flujo_worker.observe.log import emit

SHOWN: Final = 8
"""How many lines an event shows of what has changed."""


class Record:
    """The units that a claim finds at places of a run, read at once when the first is asked."""

    def __init__(self, units: StoredUnits, run: str, places: Collection[str]) -> None:
        self._units, self._run, self._places = units, run, places
        self._loading: asyncio.Task[dict[UnitName, RecordedUnit]] | None = None
        self._met, self._told = set[UnitName](), set[str]()

    @property
    def met(self) -> int:
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
        async def load() -> dict[UnitName, RecordedUnit]:
            return {each.name: each for each in await self._units.recorded(self._run, self._places)}

        self._loading = self._loading or asyncio.ensure_future(load())
        return await asyncio.shield(self._loading)


def _asked(unit: Unit | RecordedUnit) -> list[str]:
    tree: list[str] = [""] if unit.asked is None else unit.asked.tree()
    return tree


class Bounds:
    """The bounds of one step. What passes them fails it for good: it would be asked for, and paid, again and again. Above `inline` bytes an answer is stored apart."""

    def __init__(self, step: str, limits: SizeLimits, inline: int | None = None) -> None:
        self._step, self._limits, self._bytes = step, limits, 0
        self.inline = limits.snapshot_inline_bytes if inline is None else inline

    def check(self, units: int, operation: str) -> None:
        """Raise NonRetryableError if the step has too many units, with this one."""
        if units > self._limits.step_units:
            self._refuse(f"more than {self._limits.step_units:,} units", operation, "step_units")

    def packed(self, given: Any, operation: str) -> Packed:
        """Pack the result of an operation. Raises NonRetryableError: it cannot be recorded, or is too large."""
        try:
            answer = Packed.of(encode(given, path="result"))
        except SerializationError as error:
            what = f"step '{self._step}': the result of {operation} cannot be recorded: {error.message}"
            way_out = "return plain data, or pydantic models and dataclasses that workers can import"
            raise NonRetryableError(what, suggestion=way_out, code="UNIT_RESULT") from None
        if answer.length > (most := self._limits.snapshot_max_bytes):
            self._refuse(f"a result of {answer.length:,} bytes, more than {most:,}", operation, "snapshot_max_bytes")
        self.add(answer)
        if self._bytes > (most := self._limits.step_units_bytes):
            self._refuse(f"results of more than {most:,} bytes on record", operation, "step_units_bytes")
        return answer

    def add(self, answer: Packed) -> None:
        """Count an answer that is on record."""
        self._bytes += answer.length

    def _refuse(self, what: str, operation: str, limit: str) -> NoReturn:
        way_out = f"let tools store what is large and return where it is, split the step, or raise limits.{limit}"
        what = f"step '{self._step}' has {what}; the last is of {operation}"
        raise NonRetryableError(what, suggestion=way_out, code="UNIT_LIMIT")
