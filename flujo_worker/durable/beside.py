"""Tools that an agent calls at the same time: one that fails or pauses lets the others end, which the library would cancel."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


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


def _end(ended: asyncio.Future[None], begun: set[asyncio.Future[None]]) -> None:
    begun.discard(ended)
    if not ended.done():
        ended.set_result(None)
