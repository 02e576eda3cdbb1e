"""The units of one claim: each is named by its request, and answered from record or performed and recorded.

It does not depend on pydantic-ai, and treats all agents of the attempt alike.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property
from typing import Any, Final, NoReturn

from flujo_client.attempt_info import UnitInfo, current_unit, running_in_unit
from flujo_client.config.models import SizeLimits
from flujo_client.contract.outcome import NO_USAGE, Usage
from flujo_client.serial import Packed, decode
from flujo_worker import failpoints
from flujo_worker.concurrency.call_context import setting
from flujo_worker.domain.budget import RequestHolds
from flujo_worker.domain.units import SettledUnit, Unit
from flujo_worker.durable.context_writes import ContextWrites
from flujo_worker.durable.ledger import AGAIN_S, StoredUnits
from flujo_worker.durable.names import UnitCall, UnitNames, scope
from flujo_worker.durable.record import Bounds, Payments, Record
from flujo_worker.errors import AttemptWaits
from flujo_worker.observe.log import emit
from flujo_worker.runtime.attempt_run import ActiveAttempt, AttemptRun, Work
from flujo_worker.runtime.http_errors import explicit_chain
from flujo_worker.runtime.units_met import meet

LEAVE_S: Final = 3.0
"""The shortest wait for which the attempt ends, and continues afterwards, instead of occupying a worker."""


_around: ContextVar[tuple[asyncio.Future[None], ...]] = ContextVar("flujo_calls_around", default=())


class UnderWay:
    """Calls under way. Before the attempt ends early it waits for them to be settled; the library would cancel them."""

    def __init__(self) -> None:
        self._begun: set[asyncio.Future[None]] = set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Make one call in the block."""
        ended = asyncio.get_running_loop().create_future()
        self._begun.add(ended)
        try:
            with setting(_around, (*_around.get(), ended)):
                yield
        finally:
            self._end(ended)

    async def wait(self, most_s: float | None = None) -> None:
        """Wait up to `most_s` seconds for all calls to end, except those around the caller."""
        for each in self._begun.intersection(_around.get()):
            self._end(each)
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                while self._begun:
                    await asyncio.wait(tuple(self._begun))

    def _end(self, ended: asyncio.Future[None]) -> None:
        self._begun.discard(ended)
        if not ended.done():
            ended.set_result(None)


class Journal:
    """The units of one claim of an attempt, `active`. The number of the first attempt that shares units with it is `first`.

    Attributes:
        names: what they are called.
        payments: what they cost.
        batches: where requests wait for batches, under `claim`.
        digests: those of messages that were asked before, for `asked.py`.
        turns: the calls that wait in each turn of an agent, for `tool_questions.py`.
        token: makes the token that answers the question which the attempt may end with.
    """

    def __init__(
        self,
        run: AttemptRun,
        units: StoredUnits,
        active: ActiveAttempt,
        *,
        place: str,
        first: int,
        limits: SizeLimits,
        token: Callable[[], str],
    ) -> None:
        assert run.info is not None
        self.run, self.token, self._units, self._active, self.claim = run, token, units, active, active.claim
        self.batches = units.batches
        inline = None if run.work is None else run.work.step.config.blob_threshold_bytes
        self._bounds = Bounds(place.rpartition(":")[2], limits, inline)
        self.names = UnitNames(run.info.run_id, active.claim, place, first)
        self._record = Record(units, run.info.run_id, self.names.places)
        holds = RequestHolds(active.reserved)
        self.payments = Payments(active.claim, holds, units, self._record, self._bounds.inline)
        self._under_way, self._tools = UnderWay(), defaultdict[bytes, UnderWay](UnderWay)
        self._is_leaving = False
        self._failed: list[Exception] = []
        self.digests: dict[Any, Any] = {}
        self.turns: dict[Any, dict[str, Any]] = {}

    async def perform(self, call: UnitCall, body: Callable[[], Awaitable[Any]]) -> tuple[Any, bool]:
        """Return the answer, and whether it was asked for now. Equal calls are counted in the order in which they come here."""
        unit, known = await self._record.find(self.names.unit_of(call))
        if known is not None and known.answer is not None:
            meet("replayed" if known.key == self.claim.key else "stored", is_request=call.is_paid)
            self._bounds.add(known.answer)
            return self._read(known.answer), False
        if self._active.leaves or self.run.over is not None:
            await self._leave()
        self._bounds.check(self._record.met, call.operation)
        if known is None:
            self._record.emit_change(unit)
        else:
            emit("unit.possibly_done", "warning", operation=call.operation, tries=known.tries, effect=call.effect)
            if call.in_doubt is not None and (had := await call.in_doubt(f"{unit.id}:{known.tries}")) is not None:
                return await self._settle(unit, had, NO_USAGE), False
        failpoints.hit("unit_named")
        if call.begin is not None:
            with self._under_way.one():
                await call.begin(unit)
        meet("asked", is_request=call.is_paid)
        if not await self._announce(unit, call):
            found = await self._record.found_now(unit)
            return await self._on_record(None if found is None else found.answer), False
        failpoints.hit("unit_begun")
        try:
            with self._under_way.one():
                return await self._make_call(unit, call, body), True
        except Exception as error:
            self._failed.append(error)
            raise
        finally:
            self.payments.release(unit)

    async def _announce(self, unit: Unit, call: UnitCall) -> bool:
        """Announce a unit if its call needs that; return False if another claim has it. Exceeding a budget ends the attempt: user code could catch an error."""
        if call.effect is not None:
            return await self._units.write(unit)
        if call.is_paid and self.payments.are_limited:
            over = await self.payments.reserve(unit, call.expected())
            if over is not None:
                self.run.over = over
                await self._leave()
        elif call.is_paid:
            self._units.announce(unit)
        return True

    async def _make_call(self, unit: Unit, call: UnitCall, body: Callable[[], Awaitable[Any]]) -> Any:
        with self.names.inside(unit), running_in_unit(UnitInfo(call.operation, unit.id)):
            given = await body()
        failpoints.hit("unit_answered")
        try:
            usage = call.usage(given)
        except Exception as error:  # a price that is missing where costs are strict
            self.payments.add(self.run.take_charge(error))
            raise
        return await self._settle(unit, given, usage)

    async def _settle(self, unit: Unit, given: Any, usage: Usage) -> Any:
        """Record an answer; return the one on record."""
        try:
            answer = self._bounds.pack(given, unit.operation)
        except Exception:
            self.payments.add(usage)
            raise
        settling = asyncio.ensure_future(self.payments.settle(SettledUnit(unit, answer, usage)))
        try:
            on_record = await asyncio.shield(settling)
        except asyncio.CancelledError:  # record the answer before the attempt ends
            await asyncio.wait([settling], timeout=AGAIN_S)
            raise
        failpoints.hit("unit_settled")
        return await self._on_record(on_record)

    async def _on_record(self, answer: Packed | None) -> Any:
        """Return a unit's answer. Without one another claim has the attempt, so this one ends, but not as a failure."""
        return await self._end_attempt(self._active.cancel) if answer is None else self._read(answer)

    def _read(self, answer: Packed) -> Any:
        """Decode an answer from its stored form, the first time too, so that a replay returns the same."""
        return decode(answer.tree(), resolve=self._work.resolve, path="answer of a unit")

    @property
    def _work(self) -> Work:
        assert self.run.work is not None, "it is performed"
        return self.run.work

    @cached_property
    def context_writes(self) -> ContextWrites:
        """Return what its tools write into the attempt's context."""
        return ContextWrites(self.run, self._answers)

    async def _answers(self) -> list[Any]:
        return [self._read(each) for each in await self._record.answers()]

    @asynccontextmanager
    async def beside_others(self) -> AsyncIterator[None]:
        """Call one tool of an agent's turn in the block. If it fails or pauses, wait for the others for up to half of the step's timeout."""
        beside = self._tools[scope()]
        with beside.one():
            try:
                yield
            except Exception:
                await beside.wait(self._work.timeout_s / 2)
                raise

    async def wait(self, seconds: float, why: str) -> None:
        """Wait. Raises AttemptWaits: the wait is so long that the attempt ends. In a tool it never ends, because the tool would be called again."""
        if seconds >= LEAVE_S and current_unit() is None:
            self._is_leaving = True
            raise AttemptWaits(why, after_s=seconds)
        await asyncio.sleep(max(0.0, seconds))

    async def go_on_later(self, seconds: float, why: str) -> NoReturn:
        """End the attempt for that many seconds, after the other calls under way have ended; raises AttemptWaits."""
        await self._under_way.wait()
        self._is_leaving = True
        raise AttemptWaits(why, after_s=seconds)

    async def sleep(self, seconds: float) -> None:
        """Sleep for an agent. A long sleep is recorded, so that the attempt that continues does not sleep again."""
        if seconds >= LEAVE_S and current_unit() is None:
            unit, known = await self._record.find(self.names.unit_of(UnitCall("sleep", b"")))
            if known is None:
                await self._settle(unit, None, NO_USAGE)
            elif known.key != self.claim.key:
                return
        await self.wait(seconds, f"the agent sleeps for {seconds:g} s")

    @property
    def is_over(self) -> bool:
        """Return whether the attempt ends here, to be continued by another claim."""
        return self._is_leaving or self._active.cancelled or self._active.interrupted

    def has_failed_with(self, error: BaseException) -> bool:
        """Return whether a call, and not the code that used its answer, has raised this error."""
        return any(link is each for link in explicit_chain(error) for each in self._failed)

    def emit_unasked(self) -> None:
        """Emit which recorded units of the active requesters were not requested again."""
        self._record.emit_unasked(self.names.requesters)

    async def _leave(self) -> NoReturn:
        """End the attempt at this call, after earlier calls have ended."""
        await self._under_way.wait()
        await self._end_attempt(self._active.leave)

    async def _end_attempt(self, end: Callable[[], object]) -> NoReturn:
        end()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nothing ends this future")
