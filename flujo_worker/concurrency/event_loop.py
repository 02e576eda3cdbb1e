"""One event loop per process, in a separate thread. Agents and their clients live on it; Celery's threads wait for it.

User code that ignores its cancellation is left behind: its caller gets a timeout, and the coroutine continues without effect.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import Context, ContextVar
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from flujo_worker.concurrency.call_context import context_of_call
from flujo_worker.concurrency.frames import Place, place_of
from flujo_worker.concurrency.lateness import Lateness, waited_for_cpu_s
from flujo_worker.concurrency.native import event_loop, native_thread

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLOSING_S = 1.0
"""Seconds that code may take to end when the process ends."""


def is_async(function: Any) -> bool:
    """Return whether calling this returns a coroutine: it is an async function, or an object with an async `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def is_cancelled() -> bool:
    """Return whether other code has cancelled the current task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def of_limit(error: TimeoutError, seconds: float) -> TimeoutError:
    """Mark a timeout as caused by one of our limits; a TimeoutError of user code is not."""
    error.flujo_limit_s = seconds  # type: ignore[attr-defined]
    return error


def reached_limit_s(error: BaseException) -> float | None:
    """Return the limit in seconds if one of our limits has raised this error, else None."""
    return getattr(error, "flujo_limit_s", None)


def is_late_answer(error: BaseException) -> bool:
    """Return whether the code of this timeout ended by itself, but too late: it blocked the loop, or handled its cancellation."""
    return getattr(error, "flujo_late_answer", False)


class within:  # noqa: N801 - used as asyncio.timeout is
    """Bound a block of user code in time: `async with within(seconds)`. An answer after that is a timeout too.

    `make_error` turns the TimeoutError that the coroutine's caller gets when the block is left behind into another error. `limit_s` is the
    limit that errors name, of which these seconds remain.

    Raises:
        TimeoutError: the block was cancelled, or ended too late.
    """

    def __init__(
        self,
        seconds: float,
        make_error: Callable[[TimeoutError], BaseException] = lambda error: error,
        *,
        limit_s: float | None = None,
    ) -> None:
        self._seconds, self._make_error, self._call = seconds, make_error, _current.get()
        self._limit_s = seconds if limit_s is None else limit_s
        self._timeout = asyncio.timeout(None)
        self.ends_at = time.monotonic() + seconds

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        # The loop keeps cancelled timers, up to a hundred, and each its context variables: this one's must not hold the attempt's values.
        Context().run(self._timeout.reschedule, asyncio.get_running_loop().time() + self._seconds)
        if self._call is not None:
            self._call.limits.append(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._call is not None:
            self._call.limits.remove(self)
        try:
            await self._timeout.__aexit__(kind, error, at)
        except TimeoutError as expired:
            of_limit(expired, self._limit_s)
            raise
        if kind is None and time.monotonic() > self.ends_at:
            late = of_limit(TimeoutError(), self._limit_s)
            late.flujo_late_answer = True  # type: ignore[attr-defined]
            raise late

    def error(self, why: str, place: Place) -> BaseException:
        """Make the error of a block that is left behind."""
        timeout = of_limit(TimeoutError(f"no answer within {self._limit_s:g} s, and {why}"), self._limit_s)
        timeout.flujo_left_behind = place  # type: ignore[attr-defined]
        return self._make_error(timeout)


class Inbox:
    """Calls to make on a loop, from other threads. One wake-up, which costs two switches of threads, serves all calls that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._is_woken = False

    def put(self, call: Callable[[], object]) -> None:
        """Schedule a call; it must not raise."""
        self._calls.append(call)
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self.make_calls)

    def make_calls(self) -> None:
        """Make the calls that are scheduled. Called on the loop."""
        self._is_woken = False
        while self._calls:
            self._calls.popleft()()


class CallFuture(Future[T]):
    """A coroutine on the loop, as its caller's future.

    It references its coroutine's task only while that runs: otherwise each call would be a reference cycle. All have one condition, because
    making one takes as long as all else that a call needs; few callers wait in a thread, and those by an event of their own.

    Args:
        name: of the coroutine, for people.
        late: called on the loop with a task that ended when no caller waited for it any more.

    Attributes:
        blocked_at: the place at which the coroutine blocked the loop, if it did.
        task: the coroutine's; None before it begins and after it has ended, and so is `stop`, which cancels it.
        limits: the blocks that bound it now.
    """

    blocked_at: Place | None = None
    task: asyncio.Task[Any] | None = None
    stop: Callable[[], object] | None = None
    is_left = is_interrupted = False
    _dropped_at: float | None = None
    _condition = threading.Condition()

    def __init__(self, name: str = "", late: Callable[[asyncio.Task[T]], object] = lambda task: task) -> None:
        # `Future`'s, without its condition.
        self._state = "PENDING"
        self._result = self._exception = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Future[Any]], object]] = []
        self.name, self.late = name, late
        self.limits: list[within] = []

    def result(self, timeout: float | None = None) -> T:
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        if not self.done():
            ended = threading.Event()
            self.add_done_callback(lambda _: ended.set())
            ended.wait(timeout)

    def cancel(self) -> bool:
        """Cancel the coroutine without waiting for its end."""
        is_cancelled = super().cancel()
        if is_cancelled and (stop := self.stop) is not None:
            stop()
        return is_cancelled

    def interrupt(self) -> None:
        """Cancel the coroutine once. Called on the loop."""
        if not self.is_interrupted:
            self.is_interrupted = True
            if self.task is not None:
                self.task.cancel()

    def is_overdue(self, now: float, grace_s: float, runs_since: float) -> bool:
        """Return whether the grace time after its end is over; note since when no caller waits for it."""
        if self.done() and self._dropped_at is None:
            self._dropped_at = now
        since = [each.ends_at for each in tuple(self.limits)] if self._dropped_at is None else [self._dropped_at]
        return any(now > max(each, runs_since) + grace_s for each in since)

    def leave(self, why: str, place: Place) -> None:
        """Raise in the caller the timeout of the outermost block that has expired."""
        self.is_left = True
        limit = min(tuple(self.limits), key=lambda each: each.ends_at, default=None)
        if limit is not None:
            with suppress(InvalidStateError):
                self.set_exception(limit.error(why, place))


_kept: list[asyncio.AbstractEventLoop] = []
"""Loops with coroutines that did not end: to drop one would run their code again, with a GeneratorExit."""
_current: ContextVar[CallFuture[Any] | None] = ContextVar("call", default=None)


class Loop:
    """The process's event loop. Make it after a fork, never before.

    Attributes:
        settle: called on the loop when it was late, with the seconds. It may block: tasks that other threads
            cancel meanwhile are cancelled before any waiting coroutine continues.
    """

    def __init__(self) -> None:
        self._loop = event_loop()
        self._inbox = Inbox(self._loop)
        self._calls: dict[CallFuture[Any], None] = {}
        self._asked_at: float | None = None
        self._waited_before_s = 0.0
        self._lateness = Lateness(self._loop, self._after_delay)
        self.settle: Callable[[float], object] = lambda _: None
        self.is_given_up = self._is_closing = False
        self.answers = threading.Event()
        self.answers.set()
        self._thread = native_thread(self._serve, "flujo-loop")
        self._thread.start()

    def submit(
        self,
        work: Coroutine[Any, Any, T],
        name: str = "",
        late: Callable[[asyncio.Task[T]], object] = lambda task: task,
    ) -> CallFuture[T]:
        """Start a coroutine on the loop, with the caller's context variables and its own decimal context."""
        call = CallFuture(name, late)
        self._calls[call] = None
        context = context_of_call()
        context.run(_current.set, call)
        self._inbox.put(partial(self._begin, call, work, context))
        return call

    def interrupt(self, call: CallFuture[Any]) -> None:
        """Cancel a coroutine, but keep its future open until it has ended. Callers that do not wait cancel the future instead."""
        if call in self._calls:
            self._inbox.put(call.interrupt)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_idle(self) -> bool:
        return not self._calls

    @property
    def left_behind(self) -> int:
        """Return how many coroutines were left behind and have not ended."""
        return sum(each.is_left for each in tuple(self._calls))

    @property
    def is_blocked_by_call(self) -> bool:
        """Return whether the call that blocks the loop is known; the code of a callback belongs to no call."""
        return any(each.blocked_at is not None for each in tuple(self._calls))

    @property
    def silent_s(self) -> float:
        """Return for how many seconds the loop has not answered `ping`."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    @property
    def late_s(self) -> float:
        """Return for how many seconds the loop has been late, since it began."""
        return self._lateness.total_s

    @property
    def waited_for_cpu_s(self) -> float:
        """Return for how many seconds the loop's thread had to wait for a CPU, since it began; 0 where that is not known."""
        return waited_for_cpu_s(self._thread.native_id)

    @property
    def is_starved(self) -> bool:
        """Return whether the loop is silent because it gets no CPU, and not because of its code."""
        return self.waited_for_cpu_s - self._waited_before_s > self.silent_s / 2

    def ping(self) -> None:
        """Ask the loop for a sign of life, if none is pending."""
        if self._asked_at is None:
            self._waited_before_s = self.waited_for_cpu_s
            self._asked_at = time.monotonic()
            self._loop.call_soon_threadsafe(self._answer)

    def leave_overdue(
        self, grace_s: float, *, now: float | None = None, runs_since: float = -math.inf
    ) -> list[tuple[str, Place]]:
        """Leave behind calls that have not ended within their grace time; return their names and places. Called from another thread.

        Grace passes only while the process runs: from `runs_since` to `now`, by its monotonic clock.
        """
        now, left, why = now or time.monotonic(), [], "the code ignored its cancellation"
        if not self.answers.is_set():
            why = "the event loop is blocked"
            self.blame()  # again: at first the loop may have had too little CPU to show which call blocks it
        for call in tuple(self._calls):
            if call.is_left or not call.is_overdue(now, grace_s, runs_since):
                continue
            place = self.place(call.task)
            call.leave(why, place)
            left.append((call.name, place))
        return left

    def blame(self) -> tuple[str, Place]:
        """Find the call whose code blocks the loop, and notify its caller; return its name and the place that the loop is at.

        The name is empty where no call's code is running: a library that is imported is no call's fault.
        """
        task, place = asyncio.current_task(self._loop), self._place()
        call = next((each for each in tuple(self._calls) if task is not None and each.task is task), None)
        if call is None or not place.is_users or self.is_starved:
            return "", place
        call.blocked_at = place
        return call.name, place

    def _place(self) -> Place:
        return place_of(sys._current_frames().get(self._thread.ident or 0))  # noqa: SLF001 - there is no public access

    def place(self, task: asyncio.Task[Any] | None) -> Place:
        if task is None or asyncio.current_task(self._loop) is task:
            return self._place()
        return place_of(task.get_coro())

    def give_up(self) -> None:
        """Release the callers that wait for this loop, which is blocked permanently."""
        self.is_given_up = True
        for call in tuple(self._calls):
            call.cancel()
        self.answers.set()

    def close(self) -> None:
        """Cancel what still runs and stop the thread; what ignores that ends with the process."""
        self._is_closing = True
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(_cancel_all(self._loop)))
        self._thread.join(timeout=2 * CLOSING_S)
        if self._thread.is_alive():
            logger.warning("the event loop is blocked and cannot be closed")
        elif self._calls:
            _kept.append(self._loop)
        else:
            self._loop.close()

    def _begin(self, call: CallFuture[Any], work: Coroutine[Any, Any, Any], context: Context) -> None:
        if call.cancelled():
            work.close()
            self._calls.pop(call, None)
            return
        call.task = task = self._loop.create_task(work, context=context)
        task.add_done_callback(partial(self._end, call))
        call.stop = partial(self._cancel, task)
        if call.is_interrupted or call.cancelled():
            task.cancel()

    def _end(self, call: CallFuture[Any], task: asyncio.Task[Any]) -> None:
        """Deliver a call's result, or pass its task to `late` if no caller waits for it."""
        self._calls.pop(call, None)
        call.task = call.stop = None
        error = None if task.cancelled() else task.exception()
        if call.done():
            call.late(task)
            return
        with suppress(InvalidStateError):  # left behind at this very moment
            if task.cancelled():
                call.cancel()
            elif error is not None:
                call.set_exception(error)
            else:
                call.set_result(task.result())

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._inbox.put(task.cancel)

    def _after_delay(self, seconds: float) -> None:
        self.settle(seconds)
        self._inbox.make_calls()

    def _answer(self) -> None:
        self._asked_at = None

    def _serve(self) -> None:
        """Run until closed, because a `sys.exit()` in an agent's task, or `stop()`, would end the work of all attempts."""
        while True:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                logger.exception("a task asked to end the process; the event loop continues")
            else:
                if self._is_closing:
                    return
                logger.error("code that ran on the event loop stopped it; the event loop continues")


async def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CLOSING_S)
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSING_S / 2):
            await loop.shutdown_asyncgens()
    loop.stop()
