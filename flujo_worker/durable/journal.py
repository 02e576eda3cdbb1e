"""One claim's units: named by what is asked, answered from record, or asked and recorded.

It knows nothing of pydantic-ai, and decides for all agents of the attempt alike. In: what is asked, as bytes, and what asks it. Out: the
recorded answer, or what was asked for, as it was recorded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final, NamedTuple, NoReturn, Protocol, TypeVar

from flujo_client.attempt_info import UnitInfo, current_unit, running_in_unit
from flujo_client.config.models import SizeLimits
from flujo_client.contract.outcome import NO_USAGE, Usage
from flujo_client.serial import Packed, decode
from flujo_worker import failpoints
from flujo_worker.domain.budget import Amount, RequestHolds, Reservation
from flujo_worker.domain.units import Effect, RecordedUnit, SettledUnit, Unit, UnitName
from flujo_worker.durable.beside import BegunTools, UnderWay
from flujo_worker.durable.bounds import Bounds
from flujo_worker.durable.changes import emit_change, emit_unasked
from flujo_worker.durable.context_writes import ContextWrites
from flujo_worker.durable.ledger import StoredUnits, Written
from flujo_worker.errors import AttemptWaits, StoreError
from flujo_worker.observe.log import emit
from flujo_worker.ports import ClaimId
from flujo_worker.runtime.attempt_run import AttemptRun
from flujo_worker.runtime.http_errors import explicit_chain
from flujo_worker.runtime.units_met import meet

T = TypeVar("T")

FORM: Final = b"1"
"""The version of the form of digests: units of another form are not found."""
LEAVE_S: Final = 3.0
"""Seconds from which a wait holds no worker: the attempt ends, and goes on then."""
AGAIN_S: Final = 1.0
"""Seconds after which an answer that the store did not take is offered again."""


class _Scope(NamedTuple):
    """What units are asked for: with what that was asked, and, so that what has changed is found, without."""

    digest: bytes = b""
    asker: str = ""


_scope: ContextVar[_Scope] = ContextVar("flujo_unit_scope", default=_Scope())  # noqa: B039 - it cannot change


@dataclass(frozen=True, slots=True)
class UnitCall:
    """A call that is a unit.

    Attributes:
        operation: its name, which lasts over deploys.
        asked: what is asked, as bytes.
        parts: the same in parts, each with a short digest, of a request.
        effect: what it does outside; None: it may be repeated.
        is_paid: whether a repetition would be paid for: it is announced before it is begun.
        usage: what an answer has cost, which it is called with as it came.
        in_doubt: asks a person about one that was begun before and has no answer, and that has this id; returns the answer that it had, or None
            to make it again. None: nobody needs to be asked.
        begin: waits until it may be asked, before it is announced.
    """

    operation: str
    asked: bytes
    effect: Effect | None = None
    is_paid: bool = False
    parts: Sequence[str] = ()
    usage: Callable[[Any], Usage] = lambda _: NO_USAGE
    in_doubt: Callable[[str], Awaitable[Any]] | None = None
    model: str | None = None
    expected: Callable[[], Amount] = Amount
    """Estimates what an answer costs: under limits that is set aside before it is asked for."""
    begin: Callable[[], Awaitable[None]] | None = None


class HeldAttempt(Protocol):
    """An attempt that this process works on."""

    reserved: Sequence[Reservation]
    """What its claim has reserved under limits."""
    leaves: bool
    """Whether this process stops: another worker is to go on."""
    cancelled: bool
    interrupted: bool

    @property
    def claim(self) -> ClaimId:
        """Return the claim under which its units are asked."""

    def cancel(self) -> None:
        """Stop it: another claim has it."""

    def leave(self) -> None:
        """End it here."""


class Journal:
    """The units of one claim.

    Args:
        run: the attempt.
        units: where they are written.
        held: the attempt, as its process holds it.
        place: the attempt's address and step.
        first: the number of the first attempt of those that share units with this one.
        limits: how many units a step may have, and of what sizes.
        token: makes the token that answers the question which the attempt may end with.
    """

    def __init__(
        self,
        run: AttemptRun,
        units: StoredUnits,
        held: HeldAttempt,
        *,
        place: str,
        first: int,
        limits: SizeLimits,
        token: Callable[[], str],
    ) -> None:
        assert run.info is not None
        self.run, self._units, self._held, self._claim = run, units, held, held.claim
        self._holds = RequestHolds(held.reserved)
        self._under_way = UnderWay()
        self._holding = asyncio.Lock()  # what is held is written in the order in which it was computed
        self.token = token
        self._of_step = place
        inline = None if run.work is None else run.work.step.config.blob_threshold_bytes
        self._bounds = Bounds(place.rpartition(":")[2], limits, inline)
        self._of_chain = f"{self._of_step}:{first}"
        self._counts = Counter[bytes]()
        self._met: set[UnitName] = set()
        self._askers, self._told = {""}, set[str]()
        self._loading: asyncio.Task[dict[UnitName, RecordedUnit]] | None = None
        self._begun = BegunTools()
        self._spent = self._booked = self.spent = NO_USAGE
        self._runs, self._is_leaving = 0, False
        self._failed: list[Exception] = []
        self.digests: dict[Any, Any] = {}
        """The digests of messages that were asked before, for `asked.py`."""
        self.turns: dict[Any, dict[str, Any]] = {}
        """The calls that wait in each turn of an agent, for `tool_questions.py`."""

    @contextmanager
    def agent_run(self, name: str, prompt: bytes) -> Iterator[None]:
        """Ask the units inside for this run of an agent: those of equal runs beside it are others."""
        named = _digest(_scope.get().digest, b"run", name.encode())
        scope = _digest(named, prompt)
        with self._inside(_digest(scope, self._counted(scope)), _digest(named, self._counted(named))):
            yield

    @contextmanager
    def _inside(self, digest: bytes, asker: bytes) -> Iterator[None]:
        scope = _Scope(digest, asker[:8].hex())
        self._askers.add(scope.asker)
        token = _scope.set(scope)
        try:
            yield
        finally:
            _scope.reset(token)

    @cached_property
    def context_writes(self) -> ContextWrites:
        """Return what its tools write into the attempt's context."""
        return ContextWrites(self.run, self._answers)

    def next_run_id(self) -> str:
        """Return an id for the next run of an agent."""
        self._runs += 1
        return f"{self.run.info and self.run.info.run_id}:{self._of_chain}:{self._runs}"

    def has_failed_with(self, error: BaseException) -> bool:
        """Return whether a call has raised this error, and not what was done with the answers."""
        return any(link is each for link in explicit_chain(error) for each in self._failed)

    def take_spent(self) -> Usage:
        """Return what was paid and not taken yet for answers that are not on record: what is, is booked with its unit."""
        spent, self._spent = self._spent, NO_USAGE
        return spent

    def take_booked(self) -> Usage:
        """Return what was booked with units and not taken yet, for an event."""
        booked, self._booked = self._booked, NO_USAGE
        return booked

    async def recorded(self) -> dict[UnitName, RecordedUnit]:
        """Return what was on record when the claim began."""
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load())
        return await asyncio.shield(self._loading)

    async def _answers(self) -> list[Any]:
        return [self.read(each.answer) for each in (await self.recorded()).values() if each.answer is not None]

    async def perform(self, call: UnitCall, body: Callable[[], Awaitable[Any]]) -> tuple[Any, bool]:
        """Return the answer, and whether it was asked for now. Equal calls are counted in the order in which they come here."""
        unit = self._named(call)
        self._met.add(unit.name)
        known = (await self.recorded()).get(unit.name)
        if known is not None and known.answer is not None:
            meet("replayed" if known.key == self._claim.key else "told", is_request=call.is_paid)
            self._bounds.add(known.answer)
            return self.read(known.answer), False
        if self._held.leaves or self.run.over is not None:
            await self._leave()
        self._bounds.check(len(self._met), call.operation)
        if known is None:
            emit_change(unit, self._unasked(), self._told)
        else:
            emit("unit.possibly_done", "warning", operation=call.operation, tries=known.tries, effect=call.effect)
            if call.in_doubt is not None and (had := await call.in_doubt(f"{unit.id}:{known.tries}")) is not None:
                return await self._record(unit, had, NO_USAGE), False
        failpoints.hit("unit_named")
        if call.begin is not None:
            await call.begin()
        meet("asked", is_request=call.is_paid)
        if not await self._announced(unit, call):
            return await self._conflicting(unit), False
        failpoints.hit("unit_begun")
        try:
            with self._under_way.one():
                return await self._ask(unit, call, body), True
        except Exception as error:
            self._failed.append(error)
            raise
        finally:
            self._holds.end(unit)

    async def _announced(self, unit: Unit, call: UnitCall) -> bool:
        """Announce a unit as its call needs it; return whether it may be asked."""
        if call.effect is not None:
            return await self._write(unit)
        if call.is_paid and self._holds.reserved:
            await self._reserve(unit, call)
        elif call.is_paid:
            self._units.announce(unit)
        return True

    async def _reserve(self, unit: Unit, call: UnitCall) -> None:
        """Set aside what a request may cost. One that does not fit ends the attempt: an error could be caught, and the agent would ask on."""
        expected = call.expected()
        async with self._holding:
            holds = self._holds.begin(unit, expected)
            over = await self._lasting(lambda: self._units.reserve(unit, holds))
        if over is not None:
            self._holds.end(unit)
            self.run.over = over
            await self._leave()

    async def _ask(self, unit: Unit, call: UnitCall, body: Callable[[], Awaitable[Any]]) -> Any:
        digest = _digest(unit.name.digest, unit.name.nth.to_bytes(4))
        with self._inside(digest, digest), running_in_unit(UnitInfo(call.operation, unit.id)):
            given = await body()
        failpoints.hit("unit_answered")
        return await self._record(unit, given, self._paid(call, given))

    async def _record(self, unit: Unit, given: Any, usage: Usage) -> Any:
        try:
            answer = self._bounds.packed(given, unit.operation)
        except Exception:
            self._spent += usage
            raise
        settling = asyncio.ensure_future(self._settle(SettledUnit(unit, answer, usage)))
        try:
            on_record = await asyncio.shield(settling)
        except asyncio.CancelledError:  # what is answered is recorded, and then the attempt ends
            await asyncio.wait([settling], timeout=AGAIN_S)
            raise
        failpoints.hit("unit_settled")
        return await self._lose() if on_record is None else self.read(on_record)

    def _paid(self, call: UnitCall, given: Any) -> Usage:
        try:
            return call.usage(given)
        except Exception as error:  # a price that is missing where costs are strict
            self._spent += self.run.take(error)
            raise

    async def _settle(self, settled: SettledUnit) -> Packed | None:
        """Record an answer, and return the one that is on record. What it has cost is booked with it; what is not on record, the outcome books."""
        async with self._holding if settled.unit in self._holds else nullcontext():
            if settled.unit in self._holds:
                settled = replace(settled, holds=self._holds.end(settled.unit, Amount.of(settled.usage)))
            answer, is_own = settled.answer, await self._write(settled)
        if not is_own:  # another claim's, or this one's, and Postgres could not say so
            found = await self._found(settled.unit)
            if found is None or found.answer is None:
                self._spent += settled.usage
                return None
            answer, is_own = found.answer, (found.key, found.fence, found.claim_id) == self._claim
        if is_own:
            self._booked, self.spent = self._booked + settled.usage, self.spent + settled.usage
        else:
            self._spent += settled.usage
        return answer

    def beside_others(self) -> AbstractAsyncContextManager[None]:
        """Call one tool of an agent's turn inside: when it fails or pauses, those beside it end first, for up to half of the step's time."""
        assert self.run.work is not None, "it is performed"
        return self._begun.one_of(_scope.get().digest, self.run.work.timeout_s / 2)

    async def wait(self, seconds: float, why: str) -> None:
        """Wait for a moment; raises AttemptWaits: it takes longer, and so the attempt ends. In a tool it does not: that would be called again."""
        if seconds >= LEAVE_S and current_unit() is None:
            self._is_leaving = True
            raise AttemptWaits(why, after_s=seconds)
        await asyncio.sleep(max(0.0, seconds))

    async def sleep(self, seconds: float) -> None:
        """Sleep for an agent. A long sleep is on record, so the attempt that goes on after it has slept."""
        if seconds >= LEAVE_S and current_unit() is None:
            unit = self._named(UnitCall("sleep", b""))
            self._met.add(unit.name)
            known = (await self.recorded()).get(unit.name)
            if known is None:
                await self._record(unit, None, NO_USAGE)
            elif known.key != self._claim.key:
                return
        await self.wait(seconds, f"the agent sleeps for {seconds:g} s")

    @property
    def is_over(self) -> bool:
        """Return whether the attempt ends here, and goes on elsewhere."""
        return self._is_leaving or self._held.cancelled or self._held.interrupted

    def ask_id(self, *what: bytes, is_effect: bool = False) -> str:
        """Return what names a question to a person that is asked here. Equal ones are counted in the order in which they come.

        About an effect it is the same in every attempt at the step, as the effect is.
        """
        where = (self._of_step.encode(), b"") if is_effect else (self._of_chain.encode(), _scope.get().digest)
        digest = _digest(*where, b"ask", *what)
        return (digest + self._counted(digest)).hex()

    def _named(self, call: UnitCall) -> Unit:
        info = self.run.info
        assert info is not None
        # An effect is the same for every agent run at the step; any other call is one of a certain place in a certain run.
        scope, place = (b"", self._of_step) if call.effect else (_scope.get().digest, self._of_chain)
        digest = _digest(FORM, scope, call.operation.encode(), call.asked)
        name = UnitName(place, digest, int.from_bytes(self._counted(digest)))
        claim = self._claim.key, self._claim.fence or 0, self._claim.claim_id or ""
        asked = Packed.of([_scope.get().asker, *call.parts])
        return Unit(info.run_id, name, *claim, call.operation, call.effect, asked, call.model)

    def _counted(self, digest: bytes) -> bytes:
        number = self._counts[digest]
        self._counts[digest] += 1
        return number.to_bytes(4)

    def emit_unasked(self) -> None:
        """Emit which units on record nothing has asked for, of those who have asked for any."""
        emit_unasked(self._unasked(), self._askers)

    def _unasked(self) -> Iterator[RecordedUnit]:
        recorded = {} if self._loading is None else self._loading.result()
        return (each for name, each in recorded.items() if name not in self._met)

    async def _load(self) -> dict[UnitName, RecordedUnit]:
        assert self.run.info is not None
        places = (self._of_step, self._of_chain)
        return {each.name: each for each in await self._units.recorded(self.run.info.run_id, places)}

    def read(self, answer: Packed) -> Any:
        """Return an answer as it is stored, the first time too: what that changes, it changes always."""
        assert self.run.work is not None, "it is performed"
        return decode(answer.tree(), resolve=self.run.work.resolve, path="answer of a unit")

    async def _write(self, written: Written) -> bool:
        return await self._lasting(lambda: self._units.write(written, inline=self._bounds.inline))

    async def _lasting(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write, for as long as the claim lasts: an answer is paid for."""
        while True:
            try:
                return await write()
            except StoreError:
                await asyncio.sleep(AGAIN_S)

    async def _conflicting(self, unit: Unit) -> Any:
        """Return the answer that a unit has; without one this claim is over."""
        found = await self._found(unit)
        return await self._lose() if found is None or found.answer is None else self.read(found.answer)

    async def _found(self, unit: Unit) -> RecordedUnit | None:
        found = await self._units.recorded(unit.run, [unit.name.place])
        return next((each for each in found if each.name == unit.name), None)

    async def _lose(self) -> NoReturn:
        """End the attempt, which another claim has: not as its failure, after which it would be tried again."""
        await self._end_attempt(self._held.cancel)

    async def _leave(self) -> NoReturn:
        """End the attempt at this call, once those that were asked before are answered."""
        await self._under_way.wait()
        await self._end_attempt(self._held.leave)

    async def _end_attempt(self, end: Callable[[], object]) -> NoReturn:
        end()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nothing ends this future")


def _digest(*parts: bytes) -> bytes:
    """Digest parts, each with its length, so that none runs into the next."""
    made = blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(8))
        made.update(part)
    return made.digest()
