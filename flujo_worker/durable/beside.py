"""What an attempt asks at the same time: what ends early lets the rest be answered and settled, which the library would cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

_around: ContextVar[tuple[asyncio.Future[None], ...]] = ContextVar("flujo_calls_around", default=())


class UnderWay:
    """Calls that have begun and not ended."""

    def __init__(self) -> None:
        self._begun: set[asyncio.Future[None]] = set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Make one inside."""
        ended = asyncio.get_running_loop().create_future()
        self._begun.add(ended)
        token = _around.set((*_around.get(), ended))
        try:
            yield
        finally:
            _around.reset(token)
            self._end(ended)

    async def wait(self, most_s: float | None = None) -> None:
        """Wait until all have ended but those that the caller is part of, which wait for it; at most for so long."""
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
