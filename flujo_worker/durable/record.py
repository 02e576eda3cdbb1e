"""The recorded units of a claim, their bounds, and their cost.

The record of a unit begins with its requester; the parts of a request follow, each as `name: digest`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final, NoReturn

from flujo_client.config.models import SizeLimits
from flujo_client.contract.outcome import NO_USAGE, Fault, Usage
from flujo_client.errors import NonRetryableError, SerializationError
from flujo_client.serial import Packed, encode
from flujo_worker.domain.budget import Amount, RequestHolds
from flujo_worker.domain.nearest import nearest
from flujo_worker.domain.units import RecordedUnit, SettledUnit, Unit, UnitName
from flujo_worker.durable.ledger import StoredUnits
from flujo_worker.durable.names import once_more
from flujo_worker.observe.log import emit
from flujo_worker.ports import ClaimId

SHOWN: Final = 8
"""The maximum number of changes that an event shows."""


class Record:
    """The units that a claim finds at places of a run, read at once when the first is asked."""

    def __init__(self, units: StoredUnits, run: str, places: Collection[str]) -> None:
        self._units, self._run, self._places = units, run, places
        self._loading: asyncio.Task[dict[UnitName, RecordedUnit]] | None = None
        self._met, self._reported = set[UnitName](), set[str]()

    @property
    def met(self) -> int:
        return len(self._met)

    async def find(self, unit: Unit) -> tuple[Unit, RecordedUnit | None]:
        """Return the record of a unit. If its answer is lost, the unit gets another name."""
        self._met.add(unit.name)
        known = (await self._all()).get(unit.name)
        if known is None or known.answer is None or not known.answer.is_reference:
            return unit, known
        unit, again = await self.find(once_more(unit))
        return unit, again or replace(known, answer=None)

    async def found_now(self, unit: Unit) -> RecordedUnit | None:
        """Read the present record of a unit."""
        found = await self._units.recorded(unit.run, [unit.name.place])
        return next((each for each in found if each.name == unit.name), None)

    async def answers(self) -> list[Packed]:
        found = (each.answer for each in (await self._all()).values())
        return [each for each in found if each is not None and not each.is_reference]

    def emit_change(self, unit: Unit) -> None:
        """Emit how a request differs from the most similar recorded one that was not requested again: once for each requester."""
        requester, *parts = _asked(unit)
        if not parts or requester in self._reported:
            return
        trees = [_asked(each) for each in self._unasked() if each.operation == unit.operation]
        known = [rest for who, *rest in trees if who == requester]
        if known:
            self._reported.add(requester)
            changed = nearest(parts, known).changed
            first = changed[0][1:].rpartition(": ")[0] if changed else "what it is part of"
            emit("unit.changed", "warning", operation=unit.operation, first=first, changed=changed[:SHOWN])

    def emit_unasked(self, requesters: Collection[str]) -> None:
        """Emit the operations of recorded units that were not requested again. Only active requesters count: one inside an answered unit did not run."""
        operations = Counter(each.operation for each in self._unasked() if _asked(each)[0] in requesters)
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
    """The bounds of one step. Exceeding one fails the step without a retry, which would cost the same again. Answers above `inline` bytes become blobs."""

    def __init__(self, step: str, limits: SizeLimits, inline: int | None = None) -> None:
        self._step, self._limits, self._bytes = step, limits, 0
        self.inline = limits.snapshot_inline_bytes if inline is None else inline

    def check(self, units: int, operation: str) -> None:
        """Raise NonRetryableError if the step has too many units, with this one."""
        if units > self._limits.step_units:
            self._refuse(f"more than {self._limits.step_units:,} units", operation, "step_units")

    def pack(self, given: Any, operation: str) -> Packed:
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


class Payments:
    """The payments of one claim. `holds` are its reservations under limits, `spent` is the usage that is booked with units."""

    def __init__(self, claim: ClaimId, holds: RequestHolds, units: StoredUnits, record: Record, inline: int) -> None:
        self._claim, self._holds, self._units, self._record, self._inline = claim, holds, units, record, inline
        self._holding = asyncio.Lock()  # writes reservations in the order in which they were computed
        self.spent = self._unreported = self._unbooked = NO_USAGE

    @property
    def are_limited(self) -> bool:
        """Return whether each request reserves."""
        return bool(self._holds.reserved)

    def add(self, usage: Usage) -> None:
        """Add the cost of an answer that is not on record."""
        self._unbooked += usage

    def take_spent(self) -> Usage:
        """Return the cost, since the last call, of answers that are not on record; others are booked with their units."""
        spent, self._unbooked = self._unbooked, NO_USAGE
        return spent

    def take_booked(self) -> Usage:
        """Return the usage that was booked with units since the last call, for an event."""
        booked, self._unreported = self._unreported, NO_USAGE
        return booked

    async def reserve(self, unit: Unit, expected: Amount) -> Fault | None:
        """Announce a request and reserve its expected cost. Return the fault if a budget has too little left."""
        async with self._holding:
            over = await self._units.reserve(unit, self._holds.begin(unit, expected))
        if over is not None:
            self.release(unit)
        return over

    def release(self, unit: Unit) -> None:
        """Release the reservation of a request."""
        self._holds.end(unit)

    async def settle(self, settled: SettledUnit) -> Packed | None:
        """Record an answer with its cost, and return the answer on record. If that is another one, the outcome books the cost."""
        async with self._holding if settled.unit in self._holds else nullcontext():
            if settled.unit in self._holds:
                settled = replace(settled, holds=self._holds.end(settled.unit, Amount.of(settled.usage)))
            answer: Packed | None = settled.answer
            is_own = await self._units.write(settled, inline=self._inline)
        if not is_own:  # another claim's, or this one's, and Postgres could not say so
            found = await self._record.found_now(settled.unit)
            answer = None if found is None else found.answer
            claim = None if found is None or answer is None else (found.key, found.fence, found.claim_id)
            is_own = claim == self._claim
        if is_own:
            self._unreported, self.spent = self._unreported + settled.usage, self.spent + settled.usage
        else:
            self.add(settled.usage)
        return answer
