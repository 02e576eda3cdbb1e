"""Where units are written: the store, asked in threads; a worker process with an engine's loop asks it in groups (`engine/grouped_units.py`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from flujo_client.contract.outcome import Fault
from flujo_worker.domain.budget import Reservation
from flujo_worker.domain.units import RecordedUnit, SettledUnit, Unit, Written
from flujo_worker.errors import StoreError
from flujo_worker.ports import BatchStore, Stores
from flujo_worker.runtime.attempt_run import current_work, in_thread

T = TypeVar("T")
AGAIN_S: Final = 1.0
"""Seconds after which an answer that the store did not take is offered again."""

logger = logging.getLogger(__name__)


class StoredUnits:
    """The units in a store. Its coroutines run on the loop of users' code and retry for as long as the claim lasts, because answers are paid for."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    @property
    def batches(self) -> BatchStore:
        """Return where requests wait for batches; it is asked in threads."""
        return self._stores.batches

    async def recorded(self, run: str, places: Collection[str]) -> list[RecordedUnit]:
        """Read the units of these places, with the answers that are stored apart. One that is lost there, as by a failover, stays a reference."""
        return await in_thread(partial(self._read, run, places))

    async def write(self, written: Written, *, inline: int = 0) -> bool:
        """Announce a unit or record its answer, apart if it has more than `inline` bytes; return whether that was written. Waits for the disk."""
        if isinstance(written, SettledUnit) and written.answer.size > inline:
            await _lasting(partial(in_thread, partial(self._stores.blobs.store, [written.answer])))
            written = replace(written, answer=written.answer.reference())
        return await _lasting(partial(self._record, written))

    async def _record(self, written: Written) -> bool:
        units = self._stores.units
        write = partial(units.begin, [written]) if isinstance(written, Unit) else partial(units.settle, [written])
        return bool(await in_thread(write))

    async def reserve(self, unit: Unit, holds: Sequence[Reservation]) -> Fault | None:
        """Announce a request with its reservations. Return the fault if a budget has too little left."""
        return await _lasting(partial(in_thread, partial(self._stores.units.reserve, unit, holds)))

    def announce(self, unit: Unit) -> None:
        """Announce a unit, without waiting, so that after a crash it is known that the unit may have been paid for."""
        work = current_work()
        if work is not None:
            work.threads.submit(self._announce, unit)

    def _announce(self, unit: Unit) -> None:
        try:
            self._stores.units.begin([unit])
        except Exception:
            logger.warning("unit %s could not be announced", unit.id, exc_info=True)

    def _read(self, run: str, places: Collection[str]) -> list[RecordedUnit]:
        rows = self._stores.units.recorded(run, places)
        apart = {row.answer.digest for row in rows if row.answer is not None and row.answer.is_reference}
        large = self._stores.blobs.fetch(apart) if apart else {}
        for place, row in enumerate(rows):
            found = None if row.answer is None else large.get(row.answer.digest)
            if row.answer is not None and found is not None and found.matches(row.answer.digest):
                rows[place] = replace(row, answer=found)
        return rows


async def _lasting(write: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await write()
        except StoreError:
            await asyncio.sleep(AGAIN_S)
