"""Threads for code that is not `async`: as many as there are concurrent calls, reused, and abandoned when they hang.

Nothing can end a thread. So one that outlives its attempt's timeout must not block the next call, as it would in a pool of a fixed size,
nor keep the process from ending, as the standard library's executor does, which joins its threads at exit. The number of concurrent
attempts is not limited here.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import Context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

from flujo_worker.concurrency.call_context import context_of_call

IDLE_S = 30.0
"""Seconds that a thread waits for its next call before it ends: a burst must not leave as many threads as it had calls."""

P = ParamSpec("P")
T = TypeVar("T")


def carried(call: Callable[[], T]) -> Callable[[], T]:
    """Make a user's call ready for another thread: with this context's variables, its own decimal context, and without StopIteration.

    A future of asyncio does not take that one, and a caller that waits for it would wait forever.
    """
    return partial(context_of_call().run, _plain, call)


def with_usable_connections(call: Callable[[], T]) -> T:
    """Make a call; before and after it, close this thread's connections of Django that are broken or older than its `CONN_MAX_AGE`.

    Celery's fixup does so around a task. Otherwise a thread keeps its connection, and once the server has dropped it each later call fails.
    A connection that was dropped between two calls is replaced when the second one uses it, as with Django's `CONN_HEALTH_CHECKS`.
    """
    _close_connections()
    try:
        return call()
    finally:
        _close_connections()


def _close_connections() -> None:
    django = sys.modules.get("django.db")  # code that has not imported it has no connections
    if django is not None and sys.modules["django.conf"].settings.configured:
        for connection in django.connections.all():
            if not connection.in_atomic_block:  # a test's transaction is open around an eager run
                connection.close_if_unusable_or_obsolete()
                connection.health_check_enabled = True


def _plain(call: Callable[[], T]) -> T:
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError("the function raised StopIteration") from error  # as coroutines have it


class TrackedFuture(Future[T]):
    """A call's future, which records when its caller stopped waiting."""

    dropped_at: float | None = None

    def cancel(self) -> bool:
        if not super().cancel() and not self.done() and self.dropped_at is None:
            self.dropped_at = time.monotonic()
        return self.cancelled()


_Inbox = SimpleQueue[tuple["TrackedFuture[Any]", "Callable[[], Any]"] | None]


class Threads(Executor):
    """An executor whose calls never wait for each other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: deque[_Inbox] = deque()
        self._at_work: dict[TrackedFuture[Any], None] = {}
        self._is_closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn` in a thread that is idle, or in a new one."""
        future: TrackedFuture[T] = TrackedFuture()
        self._at_work[future] = None
        inbox = self._idle_or_new()
        # Added first, so it runs before a caller's own callback: if that submits the next call, this thread is idle again.
        future.add_done_callback(lambda _: self._idle.append(inbox))
        inbox.put((future, partial(fn, *args, **kwargs)))
        return future

    def left_behind(self, grace_s: float) -> int:
        """Count the calls whose callers stopped waiting longer than a grace time ago."""
        since = time.monotonic() - grace_s
        return sum(each.dropped_at is not None and each.dropped_at < since for each in tuple(self._at_work))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - Executor's signature; it waits for no one
        """End the idle threads; one that is still at work ends when it is done."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _idle_or_new(self) -> _Inbox:
        try:
            return self._idle.pop()
        except IndexError:
            inbox: _Inbox = SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name=self._name, daemon=True).start()
            return inbox

    def _serve(self, inbox: _Inbox) -> None:
        while (work := self._next(inbox)) is not None:
            perform_call(*work)
            self._at_work.pop(work[0], None)
            del work  # an idle thread must hold no values

    def _next(self, inbox: _Inbox) -> tuple[TrackedFuture[Any], Callable[[], Any]] | None:
        """Wait for the next call; None after an idle time at which the thread may end."""
        try:
            return inbox.get(timeout=0.0 if self._is_closed else IDLE_S)
        except Empty:
            with suppress(ValueError):  # another thread has just taken it
                self._idle.remove(inbox)
                return None
        return inbox.get()


def perform_call(future: Future[Any], call: Callable[[], Any]) -> None:
    """Make a call in this thread, with variables of its own, and give its result or its error to the future."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        given = Context().run(call)  # the next call in this thread must not find variables that this one set
    except BaseException as error:  # noqa: BLE001 - any error is for the waiting caller
        future.set_exception(error)
    else:
        future.set_result(given)
        del given
    finally:
        # An error's traceback holds this frame, and would hold with it the future that holds the error.
        del future, call
