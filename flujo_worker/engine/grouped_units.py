"""The units of durable attempts, written in groups on the engine's loop.

Writes that agents request within the same few rounds of their loop are passed on together. Those that come during a statement form the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from flujo_worker.domain.units import SettledUnit, Unit
from flujo_worker.durable.ledger import StoredUnits

if TYPE_CHECKING:
    from flujo_worker.domain.units import Written
    from flujo_worker.engine.engine import Engine
    from flujo_worker.ports import Stores
    from flujo_worker.store.postgres.groups import GroupedLedger

    Asked: TypeAlias = "tuple[Written, asyncio.Future[bool | None] | None]"
    """What is to be written, and who waits for it; None: nothing does."""

ROUNDS: Final = 1
"""Rounds of the agents' loop that a write waits for others: microseconds, unless other agents are at work."""


class GroupedUnits(StoredUnits):
    """Writes units in groups, and in the store those that a group does not write and answers that settle budgets."""

    def __init__(self, stores: Stores, groups: GroupedLedger, engine: Engine) -> None:
        super().__init__(stores)
        self._groups, self._engine = groups, engine
        engine.loop.call_soon_threadsafe(groups.open_units)
        self._asked: dict[asyncio.AbstractEventLoop, list[Asked]] = {}

    async def _record(self, written: Written) -> bool:
        if isinstance(written, SettledUnit) and written.holds:
            return await super()._record(written)
        answer: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._request(written, answer)
        is_written = await answer
        return await super()._record(written) if is_written is None else is_written

    def announce(self, unit: Unit) -> None:
        self._request(unit, None)

    def _request(self, written: Written, answer: asyncio.Future[bool | None] | None) -> None:
        loop = asyncio.get_running_loop()
        asked = self._asked.setdefault(loop, [])
        asked.append((written, answer))
        if len(asked) == 1:
            loop.call_soon(self._pass_on, loop, ROUNDS)

    def _pass_on(self, loop: asyncio.AbstractEventLoop, rounds: int) -> None:
        """Pass on all writes except announcements of units that are already answered."""
        if rounds:
            loop.call_soon(self._pass_on, loop, rounds - 1)
            return
        asked = self._asked.pop(loop)
        settled = {each.unit for each, _ in asked if isinstance(each, SettledUnit)}
        needed = [(each, answer) for each, answer in asked if answer is not None or each not in settled]
        asyncio.run_coroutine_threadsafe(self._write_all(loop, needed), self._engine.loop)

    async def _write_all(self, loop: asyncio.AbstractEventLoop, asked: Sequence[Asked]) -> None:
        written = await asyncio.gather(*(self._groups.write_unit(each) for each, _ in asked), return_exceptions=True)
        loop.call_soon_threadsafe(self._answer, asked, written)

    def _answer(self, asked: Sequence[Asked], written: Sequence[bool | BaseException | None]) -> None:
        for (each, answer), is_written in zip(asked, written, strict=True):
            found = None if isinstance(is_written, BaseException) else is_written
            if answer is not None and not answer.done():
                answer.set_result(found)
            elif answer is None and found is None and isinstance(each, Unit):  # the groups are not connected yet
                super().announce(each)
