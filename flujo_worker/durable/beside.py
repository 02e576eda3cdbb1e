"""What an attempt asks at the same time: what ends early lets the rest be answered and settled, which the library would cancel."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

_around: ContextVar[tuple[asyncio.Future[None], ...]] = ContextVar("flujo_units_around", default=())


class BegunTools:
    """What the runs of agents have begun and not ended."""

    def __init__(self) -> None:
        self._begun: defaultdict[bytes, set[asyncio.Future[None]]] = defaultdict(set)

    @asynccontextmanager
    async def one_of(self, agent_run: bytes, most_s: float) -> AsyncIterator[None]:
        """Call one tool inside. What it raises waits for the others, so that they are settled, but not longer than this: one may wait for it."""
        begun, ended = self._begun[agent_run], asyncio.get_running_loop().create_future()
        begun.add(ended)
        try:
            yield
        except Exception:
            _end(ended, begun)
            until = time.monotonic() + most_s
            while begun and (left := until - time.monotonic()) > 0:
                await asyncio.wait(tuple(begun), timeout=left)
            raise
        finally:
            _end(ended, begun)


class UnderWay:
    """The units of an attempt that are asked and not ended."""

    def __init__(self) -> None:
        self._asked: set[asyncio.Future[None]] = set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Ask one inside."""
        ended = asyncio.get_running_loop().create_future()
        self._asked.add(ended)
        token = _around.set((*_around.get(), ended))
        try:
            yield
        finally:
            _around.reset(token)
            _end(ended, self._asked)

    async def wait(self) -> None:
        """Wait until all have ended but those that the caller is part of, which wait for it."""
        for each in _around.get():
            _end(each, self._asked)
        while self._asked:
            await asyncio.wait(tuple(self._asked))


def _end(ended: asyncio.Future[None], begun: set[asyncio.Future[None]]) -> None:
    begun.discard(ended)
    if not ended.done():
        ended.set_result(None)
