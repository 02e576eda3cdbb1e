"""Process single requests in batches, on one event loop. Not thread-safe."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

MOST_AT_ONCE = 64
"""The largest batch: all requests of a batch wait for the slowest."""


class Batcher(Generic[T, R]):
    """Combines requests: those that arrive while a batch is processed form the next one, at once. `act` returns the results of a batch in order."""

    def __init__(self, act: Callable[[Sequence[T]], Awaitable[Sequence[R]]]) -> None:
        self._act = act
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def __call__(self, item: T) -> Awaitable[R]:
        """Queue the item, and return an awaitable of its result."""
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        return done

    async def _work(self) -> None:
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]
            waiting = [done for _, done in some]
            try:
                results = await self._act([item for item, _ in some])
            except Exception as error:  # noqa: BLE001 - it is for those who asked
                for done in waiting:
                    if not done.done():
                        done.set_exception(error)
            else:
                for done, result in zip(waiting, results, strict=True):
                    if not done.done():
                        done.set_result(result)
        self._task = None
