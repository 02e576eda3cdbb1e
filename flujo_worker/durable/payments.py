"""What one claim's requests may cost, and have cost: set aside before they are asked, and booked with their units."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace

from flujo_client.contract.outcome import NO_USAGE, Fault, Usage
from flujo_client.serial import Packed
from flujo_worker.domain.budget import Amount, RequestHolds
from flujo_worker.domain.units import SettledUnit, Unit
from flujo_worker.durable.ledger import StoredUnits
from flujo_worker.durable.record import Record
from flujo_worker.ports import ClaimId


class Payments:
    """The payments of one claim, by what it has reserved under limits (`holds`).

    Attributes:
        spent: what is booked with units.
    """

    def __init__(self, claim: ClaimId, holds: RequestHolds, units: StoredUnits, record: Record, inline: int) -> None:
        self._claim, self._holds, self._units, self._record, self._inline = claim, holds, units, record, inline
        self._holding = asyncio.Lock()  # what is held is written in the order in which it was computed
        self.spent = self._untold = self._unbooked = NO_USAGE

    @property
    def are_limited(self) -> bool:
        """Return whether each request reserves."""
        return bool(self._holds.reserved)

    def add(self, usage: Usage) -> None:
        """Add what was paid for an answer that is not on record."""
        self._unbooked += usage

    def take_spent(self) -> Usage:
        """Return what was paid and not taken yet for answers that are not on record: what is, is booked with its unit."""
        spent, self._unbooked = self._unbooked, NO_USAGE
        return spent

    def take_booked(self) -> Usage:
        """Return what was booked with units and not taken yet, for an event."""
        booked, self._untold = self._untold, NO_USAGE
        return booked

    async def reserve(self, unit: Unit, expected: Amount) -> Fault | None:
        """Announce a request, and set aside what it may cost; return why not, if that is more than is left."""
        async with self._holding:
            over = await self._units.reserve(unit, self._holds.begin(unit, expected))
        if over is not None:
            self.release(unit)
        return over

    def release(self, unit: Unit) -> None:
        """Hold nothing more for a request."""
        self._holds.end(unit)

    async def settle(self, settled: SettledUnit) -> Packed | None:
        """Record an answer, and return the one that is on record. What it has cost is booked with it; what is not on record, the outcome books."""
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
            self._untold, self.spent = self._untold + settled.usage, self.spent + settled.usage
        else:
            self.add(settled.usage)
        return answer
