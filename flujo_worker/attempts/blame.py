"""Whose failure it is: whatever user code raises is blamed on the place it came from (C-01, C-02).

It must not decide what follows. In: a block of user code and its place; out: a `StageError` with what was spent until then.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from flujo_worker.event_loop import within
from flujo_worker.runtime.work import StageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from flujo_client.contract.outcome import Usage
    from flujo_worker.runtime.faults import During


@asynccontextmanager
async def in_error_domain(during: During, usage: Usage, timeout_s: float | None = None) -> AsyncIterator[None]:
    """Blame what is raised on its place: a `sys.exit()` would end the event loop, a cancellation of its own the attempt.

    Args:
        during: the place.
        usage: what was spent until then, unless the error says what was.
        timeout_s: the limit in force, in seconds, for the message of a timeout.
    """
    try:
        yield
    except BaseException as error:
        if _are_we_cancelled():
            raise
        raise StageError(error, during, getattr(error, "flujo_usage", usage), timeout_s) from error


@asynccontextmanager
async def bounded(during: During, usage: Usage, timeout_s: float, left_s: float | None = None) -> AsyncIterator[None]:
    """Blame what is raised on its place, and bound the block in time, whether its code obeys or not.

    Args:
        during: the place.
        usage: what was spent until then.
        timeout_s: the limit in force, in seconds.
        left_s: what is left of it, where something was taken from it already.
    """

    def left(error: TimeoutError) -> StageError:
        return StageError(error, during, usage, timeout_s)

    async with in_error_domain(during, usage, timeout_s), within(timeout_s if left_s is None else left_s, left):
        yield


@contextmanager
def adding_usage(usage: Usage) -> Iterator[None]:
    """Add what was spent before the block to what it had spent where it fails."""
    try:
        yield
    except StageError as stumble:
        raise StageError(stumble.error, stumble.during, usage + stumble.usage, stumble.timeout_s) from stumble


def _are_we_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
