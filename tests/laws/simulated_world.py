"""The world of simulated workers: a clock, a broker that can lose everything, and places where a process or a connection fails.

Nothing here runs by itself: no thread, no real time. So a schedule is repeated exactly from its seed.
"""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest

from flujo_client.contract.envelope import CONTROL_QUEUE, Envelope, JoinSignal
from flujo_client.serial import dumps
from flujo_worker.concurrency.event_loop import CallFuture
from flujo_worker.domain.values import FanOut
from flujo_worker.errors import DispatchError, StoreError
from flujo_worker.runtime.effects import BlockingEffects
from flujo_worker.testing.local_engine import _Chords

TIMED = ("attempts.lease", "attempts.claim", "engine.dispatch", "recovery.sweeper")
"""The modules whose clocks decide what happens; the others only measure."""
TICK_S = 1e-6


FuseKind = Literal["dies", "asks again", "gives up"]


class Died(BaseException):
    """The process ends here: nothing of it may act any more, not even what cleans up."""


class Clock:
    """The time of workers and store, as the module `time` gives it; never the same twice, so that commits have an order."""

    def __init__(self) -> None:
        self._now = 1_700_000_000.0

    def __call__(self) -> float:
        self._now += TICK_S
        return self._now

    monotonic = __call__

    def sleep(self, seconds: float) -> None:
        self._now += seconds


CLOCK = Clock()


@contextmanager
def simulated_time() -> Iterator[None]:
    """Let the engine go by the simulator's clock."""
    with pytest.MonkeyPatch.context() as patch:
        for module in TIMED:
            patch.setattr(f"flujo_worker.{module}.time", CLOCK)
        yield


class OneThread(Executor):
    """An executor whose calls are done when they are submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return _done(Future(), partial(fn, *args, **kwargs))


class OneLoop:
    """A worker's event loop whose coroutines are done when they are submitted."""

    is_given_up = False

    def __init__(self) -> None:
        self._loop, self.answers = asyncio.new_event_loop(), threading.Event()
        self.answers.set()

    def submit(self, work: Coroutine[Any, Any, Any], name: str = "", late: Any = None) -> CallFuture[Any]:
        return _done(CallFuture(), partial(self._loop.run_until_complete, work))

    def interrupt(self, future: Future[Any]) -> None:
        """Interrupt a coroutine: it is done by now."""


def _done(future: Any, call: Callable[[], Any]) -> Any:
    try:
        future.set_result(call())
    except asyncio.CancelledError:
        future.cancel()
    except BaseException as error:  # noqa: BLE001 - it is for the caller
        future.set_exception(error)
    return future


class Fuse:
    """What goes wrong with a process: it dies, or an answer is lost; then the store's client asks again, until it gives up."""

    def __init__(self) -> None:
        self.is_dead, self._at, self._what, self._before = False, "", "", False

    def light(self, at: str, what: FuseKind, *, before: bool) -> None:
        """Let something go wrong before or after the next act of that name."""
        self._at, self._what, self._before = at, what, before

    def put_out(self) -> None:
        """Let nothing go wrong any more."""
        self._at = ""

    def passing(self, name: str, act: Callable[[], Any], error: type[Exception]) -> Any:
        """Do something to the world, if this process lives to do it; raise the error where no answer comes."""
        if self.is_dead:
            raise Died
        if self._at != name:
            return act()
        self._at = ""
        if not self._before:
            act()
        if self._what == "asks again":
            return act()
        self.is_dead = self._what == "dies"
        raise Died if self.is_dead else error("the connection was lost")


class Statements:
    """The stores as one process reaches them: statement by statement, each of which may be its last.

    Args:
        stores: the stores of all, or one of them.
        fuse: the process's.
        watch: called around each statement with its name, itself and its arguments.
    """

    def __init__(self, stores: Any, fuse: Fuse, watch: Callable[..., Any]) -> None:
        self._stores, self._fuse, self._watch = stores, fuse, watch

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._stores, name)
        if not callable(act):
            self.__dict__[name] = Statements(act, self._fuse, self._watch)
            return self.__dict__[name]

        def statement(*args: Any, **kwargs: Any) -> Any:
            return self._fuse.passing(name, partial(self._watch, name, act, *args, **kwargs), StoreError)

        statement.__name__ = name
        self.__dict__[name] = statement
        return statement


@dataclass(eq=False)
class Message:
    """A message that is in the broker; `name` is the key of its attempt."""

    name: str
    body: bytes
    queue: str
    sent_at: float


class Broker:
    """Messages in any order, and the chords; both are lost when it is flushed. Where none counts, workers look after each branch."""

    def __init__(self, *, counts_chords: bool = True) -> None:
        self.counts_chords = counts_chords
        self.messages: list[Message] = []
        self.chords, self.epoch = _Chords(), 1

    def put(self, envelopes: Sequence[Envelope]) -> None:
        for each in envelopes:
            if each.kind == "join":
                self.signal(JoinSignal(each.ticket.run, each.address))
            else:
                self.messages.append(Message(each.key, dumps(each.to_wire()), each.queue, CLOCK()))

    def signal(self, signal: JoinSignal) -> None:
        self.messages.append(Message(signal.key, dumps(signal.to_wire()), CONTROL_QUEUE, CLOCK()))

    def count(self, envelope: Envelope) -> None:
        """Count a part of a chord; the last one signals the join."""
        if (signal := self.chords.part(envelope)) is not None:
            self.signal(signal)

    def flush(self) -> None:
        self.messages.clear()
        self.chords, self.epoch = _Chords(), self.epoch + 1


class BrokerConnection:
    """The broker as one process reaches it: the port `Publisher`."""

    def __init__(self, broker: Broker, fuse: Fuse) -> None:
        self._broker, self._fuse = broker, fuse
        self.counts_chords = broker.counts_chords

    def send(self, envelopes: Sequence[Envelope], *, first: bool = False) -> None:
        self._fuse.passing("send", lambda: self._broker.put(envelopes), DispatchError)

    def open_chord(self, run: str, fan_out: str, lanes: int) -> None:
        self._fuse.passing("open_chord", lambda: self._broker.chords.open(run, FanOut(fan_out, lanes)), DispatchError)

    def count(self, envelope: Envelope) -> None:
        self._fuse.passing("count", lambda: self._broker.count(envelope), DispatchError)

    def epoch(self) -> str:
        return self._fuse.passing("epoch", lambda: str(self._broker.epoch), DispatchError)

    def heads(self, queues: Collection[str]) -> dict[str, float | None]:
        def look() -> dict[str, float | None]:
            sent = {queue: [each.sent_at for each in self._broker.messages if each.queue == queue] for queue in queues}
            return {queue: min(times, default=None) for queue, times in sent.items()}

        return self._fuse.passing("heads", look, DispatchError)


@types.coroutine
def _turn(name: str) -> Iterator[str]:
    yield name


class SteppedEffects(BlockingEffects):
    """Stops before everything that an attempt asks of the world, so that others can act in between."""

    def __init__(self, stores: Any, send: Any, fuse: Fuse) -> None:
        super().__init__(stores, send)
        self._fuse = fuse

    async def claim(self, *args: Any, **terms: Any) -> Any:
        await self._pause("claim")
        return await super().claim(*args, **terms)

    async def commit(self, decision: Any) -> Any:
        await self._pause("merge")
        return await super().commit(decision)

    async def send(self, *args: Any) -> None:
        await self._pause("publish")
        await super().send(*args)

    async def together(self, act: Any, item: Any) -> Any:
        await self._pause(act.__name__)
        return await super().together(act, item)

    async def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        await self._pause(getattr(function, "__name__", "call"))
        return await super().call(function, *args, **kwargs)

    async def result(self, future: Any) -> Any:
        await self._pause("performed")
        return await super().result(future)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        while True:
            try:
                work.send(None)
            except StopIteration as end:
                return end.value

    async def _pause(self, before: str) -> None:
        if self._fuse.is_dead:
            raise Died
        await _turn(before)
