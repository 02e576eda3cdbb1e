"""A worker's event loop, lease and watchdog beside gevent, in threads of the system; code that is not `async` in greenlets.

A loop in a greenlet would be the running loop of all greenlets: Django would refuse its ORM in each task. And code that blocks would stop what
is to notice that, and to renew the lease. Each thread has a hub of its own for greenlets, so only the main one, where Celery's runs, begins any.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
import sys
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import gevent
from gevent.monkey import get_original

from flujo_worker.concurrency.frames import place_of
from flujo_worker.concurrency.threads import Threads, TrackedFuture, perform_call

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class ThreadBelow(threading.Thread):
    """A thread of the system, begun below `threading`."""

    ident: int | None = None
    native_id: int | None = None
    _has_ended = False

    def start(self) -> None:
        get_original("_thread", "start_new_thread")(self._run_below, ())
        while self.ident is None:
            time.sleep(0.001)

    def is_alive(self) -> bool:
        return self.ident is not None and not self._has_ended

    def join(self, timeout: float | None = None) -> None:
        ends_at = time.monotonic() + (threading.TIMEOUT_MAX if timeout is None else timeout)
        while self.is_alive() and time.monotonic() < ends_at:
            time.sleep(0.01)

    def _run_below(self) -> None:
        self.native_id, self.ident = threading.get_native_id(), get_original("_thread", "get_ident")()
        try:
            self.run()
        finally:
            self._has_ended = True


class Greenlets(Threads):
    """An executor of greenlets of the main thread. Made in that thread; safe to use in any."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._hub = gevent.get_hub()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: TrackedFuture[T] = TrackedFuture()
        self._at_work[future] = None
        future.add_done_callback(lambda _: self._at_work.pop(future, None))
        self._hub.loop.run_callback_threadsafe(gevent.spawn, perform_call, future, partial(fn, *args, **kwargs))
        return future


class LoopBelow(asyncio.SelectorEventLoop):
    """An event loop that waits without a hub. What it would start threads for, greenlets of the main thread do: its own thread runs none."""

    def __init__(self) -> None:
        poll = type("_Poll", (selectors.PollSelector,), {"_selector_cls": get_original("select", "poll")})
        super().__init__(poll())
        self.greenlets = Greenlets("flujo-loop")

    def run_in_executor(  # type: ignore[override]  # its stub binds the arguments to each other
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        starts_threads = executor is None or isinstance(executor, ThreadPoolExecutor)
        begun = (self.greenlets if starts_threads or executor is None else executor).submit(func, *args)
        return asyncio.wrap_future(begun, loop=self)


class HubWatch:
    """Notices code that blocks the main thread's hub. Made in that thread, used in another one."""

    def __init__(self) -> None:
        self._hub, self._thread = gevent.get_hub(), get_original("_thread", "get_ident")()
        self._answered, self._asked_at = True, time.monotonic()
        self._is_silent = False

    def look(self, most_s: float) -> None:
        """Log the code that has blocked the hub for `most_s` seconds."""
        if self._answered:
            self._answered, self._asked_at, self._is_silent = False, time.monotonic(), False
            self._hub.loop.run_callback_threadsafe(setattr, self, "_answered", True)  # noqa: FBT003 - setattr's
        elif time.monotonic() - self._asked_at > most_s and not self._is_silent:
            self._is_silent, place = True, place_of(sys._current_frames().get(self._thread))  # noqa: SLF001 - there is no public access
            logger.warning(
                "%s blocks gevent's hub, at %s; until it ends, no greenlet runs here", place.function, place.at
            )
