"""The units of durable attempts, written in groups on the engine's loop: what is asked for while a statement is under way forms the next one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from flujo_worker.domain.units import SettledUnit
from flujo_worker.durable.ledger import StoredUnits

if TYPE_CHECKING:
    from flujo_worker.domain.units import Unit
    from flujo_worker.durable.ledger import Written
    from flujo_worker.engine.engine import Engine
    from flujo_worker.ports import Stores
    from flujo_worker.store.postgres.groups import GroupedLedger


class GroupedUnits(StoredUnits):
    """The units of a process; the store is asked for what a group does not answer, and for answers that are settled in budgets."""

    def __init__(self, stores: Stores, groups: GroupedLedger, engine: Engine) -> None:
        super().__init__(stores)
        self._groups, self._engine = groups, engine

    async def _record(self, written: Written) -> bool:
        if isinstance(written, SettledUnit) and written.holds:
            return await super()._record(written)
        asked = asyncio.run_coroutine_threadsafe(self._groups.write_unit(written), self._engine.loop)
        is_written = await asyncio.wrap_future(asked)
        return await super()._record(written) if is_written is None else is_written

    def announce(self, unit: Unit) -> None:
        asyncio.run_coroutine_threadsafe(self._groups.write_unit(unit), self._engine.loop)
