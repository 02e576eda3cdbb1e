"""Threads for code that is not `async`: as many as there are calls at once, used again, and left behind when they hang.

Nothing can end a thread. So one that outlives its attempt's timeout must not take the place of the next call, as it would in a pool
of a fixed size, nor keep the process from ending, as the standard library's executor does, which joins its threads at exit.
How many attempts run at once is limited elsewhere.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

_Inbox = SimpleQueue[tuple["Future[Any]", "Callable[[], Any]"] | None]


class Threads(Executor):
    """An executor whose calls never wait for each other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: deque[_Inbox] = deque()
        self._is_closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn` in a thread that is idle, or in a new one."""
        future: Future[T] = Future()
        self._idle_or_new().put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - Executor's signature; nobody is waited for
        """Let the idle threads go; one that is still at work goes when it is done."""
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
        while (work := inbox.get()) is not None:
            _call(*work)
            del work  # an idle thread must hold nobody's values
            if self._is_closed:
                return
            self._idle.append(inbox)


def _call(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        given = call()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is for whoever waits
        future.set_exception(error)
    else:
        future.set_result(given)
    finally:
        del (
            future,
            call,
        )  # an error's traceback holds this frame, and would hold with it the future that holds the error
