"""Threads, event loops and executors of this process, also where gevent has replaced `threading` (`beside_gevent.py`); it imports no gevent."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from importlib import import_module
from typing import Any

from flujo_client.errors import ConfigurationError
from flujo_worker.concurrency.threads import Threads


def native_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Return a daemon thread of the system that calls `target` once it is started."""
    kind: type[threading.Thread] = _gevents("ThreadBelow") or threading.Thread
    return kind(target=target, name=name, daemon=True)


def event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop for such a thread."""
    make: Callable[[], asyncio.AbstractEventLoop] = _gevents("LoopBelow") or asyncio.new_event_loop
    return make()


def threads(name: str) -> Threads:
    """Return an executor for code that is not `async`: with gevent, of greenlets in the main thread."""
    kind: type[Threads] = _gevents("Greenlets") or Threads
    return kind(name)


def executor_beside(loop: asyncio.AbstractEventLoop) -> Executor | None:
    """Return what calls functions that are not `async` for this loop's code, which may start no threads itself; None: it may."""
    return getattr(loop, "greenlets", None)


def hub_watch() -> Callable[[float], None]:
    """Return what, called with seconds now and then, names the code that has blocked all greenlets for so long; nothing where there are none."""
    kind = _gevents("HubWatch")
    return (lambda _: None) if kind is None else kind().look


def refuse_greenlets(pool: str, queues: Iterable[str]) -> None:
    """Raise ConfigurationError if a worker with this pool, a class or its name, cannot perform the attempts of these queues."""
    if "eventlet" in pool or is_patched_by_eventlet():
        raise ConfigurationError(
            "eventlet has replaced this worker's threads, so it cannot run pipelines: its threads cannot wait for an event loop in another one",
            suggestion=f"start a worker with another pool for them, as `celery -A APP worker -P gevent -Q {','.join(queues)}`, "
            "and name the queues of this one with -Q",
        )
    if "gevent" in pool and _gevents("Greenlets") is None:
        raise ConfigurationError(
            "the pool of this worker is gevent, but `threading` is not patched, so each step would stop all others",
            suggestion="write `-P gevent` on the command line, where Celery looks for it before it imports your app",
        )


def is_patched_by_eventlet() -> bool:
    patcher: Any = sys.modules.get("eventlet.patcher")
    return patcher is not None and bool(patcher.is_monkey_patched("thread"))


def _gevents(name: str) -> Any:
    """Return what gevent needs instead of a thing of the standard library, if it has replaced the threads of this process."""
    monkey: Any = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("threading"):
        return None
    return getattr(import_module("flujo_worker.concurrency.beside_gevent"), name)
