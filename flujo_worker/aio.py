"""One event loop per process, in a thread of its own. Agents and their clients live on it; Celery's threads wait for it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

logger = logging.getLogger(__name__)

T = TypeVar("T")


def is_async(function: Any) -> bool:
    """Tell whether calling it gives a coroutine: an async function, or an object whose call is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


class Loop:
    """The process's event loop. Make it after a fork, never before."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="flujo-loop", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop, with the caller's context variables."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _serve(self) -> None:
        """Run until closed: a `sys.exit()` in a task that an agent made would end the loop, and with it everybody's work."""
        while True:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                logger.exception("a task asked to end the process; the event loop goes on")
            else:
                return

    def close(self) -> None:
        """Cancel what still runs and stop the thread."""
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(timeout=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
