"""Remember which models refused structured output, so that the fleet asks each of them in vain only once.

A cache that does not answer costs one refused request, and no failure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from flujo_client.pipeline.cache import CacheBackend
from flujo_worker.runtime.attempt_run import in_thread

PREFIX: Final = "refused-format:"
WEEK_S: Final = 7 * 86_400.0
"""Seconds after which a model is asked again: providers learn."""
_LOOKED_UP_S: Final = 60.0
_MOST_KNOWN: Final = 1000

logger = logging.getLogger(__name__)


class RefusedFormats:
    """Keeps what was refused in a cache that all workers share, and for a minute in this process."""

    def __init__(self, cache: CacheBackend, clock: Callable[[], float] = time.monotonic) -> None:
        self._cache, self._clock = cache, clock
        self._known: dict[str, tuple[float, bool]] = {}

    async def includes(self, name: str) -> bool:
        """Return whether this was refused before, by any worker, within a week."""
        until, was_refused = self._known.get(name, (0.0, False))
        if self._clock() < until:
            return was_refused
        found = await self._asked(partial(self._cache.get, PREFIX + name))
        self._know(name, was_refused=found is not None)
        return found is not None

    async def add(self, name: str) -> None:
        """Remember that this was refused."""
        self._know(name, was_refused=True)
        await self._asked(partial(self._cache.set, PREFIX + name, b"1", WEEK_S))

    def _know(self, name: str, *, was_refused: bool) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[name] = self._clock() + _LOOKED_UP_S, was_refused

    async def _asked(self, call: Callable[[], Any]) -> Any:
        try:
            return await in_thread(call)
        except Exception as error:  # noqa: BLE001 - with any error of a cache, the provider can be asked
            logger.debug("no cache for refused formats: %s: %s", type(error).__name__, error)
            return None
