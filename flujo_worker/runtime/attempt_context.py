"""The attempt that code runs inside of: found by what is called from deep within an agent's own machinery, such as a tool.

It must not change the attempt. In: an attempt's work and a block; out: the same work, to whoever asks inside, in tasks and threads too.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from flujo_worker.threads import carried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flujo_worker.runtime.work import Work

T = TypeVar("T")

_work: ContextVar[Work | None] = ContextVar("work", default=None)


@contextmanager
def attempt_context(work: Work) -> Iterator[None]:
    """Let what runs inside find this work."""
    token = _work.set(work)
    try:
        yield
    finally:
        _work.reset(token)


def current_work() -> Work | None:
    """The work of the attempt that runs here; None outside of attempts."""
    return _work.get()


async def in_thread(call: Callable[[], T]) -> T:
    """Call in a thread of the attempt's: the loop's own, which serve outside of attempts, are few, and one that hangs keeps its place."""
    work = _work.get()
    threads = None if work is None else work.threads
    return await asyncio.get_running_loop().run_in_executor(threads, carried(call))
