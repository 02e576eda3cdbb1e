"""For tests of pipelines: the engine in one process, recorded runs, recorded answers of models, and a clock for real services.

The names are loaded when they are first used: only cassettes need the library that calls models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flujo_worker.agents.cassette import Cassette
    from flujo_worker.store.database_clock import DatabaseClock
    from flujo_worker.testing.faults import Faults
    from flujo_worker.testing.local_engine import LocalEngine
    from flujo_worker.testing.recorded_run import RecordedRun

_HOME = {
    "Cassette": "flujo_worker.agents.cassette",
    "DatabaseClock": "flujo_worker.store.database_clock",
    "Faults": "flujo_worker.testing.faults",
    "LocalEngine": "flujo_worker.testing.local_engine",
    "RecordedRun": "flujo_worker.testing.recorded_run",
}

__all__ = ["Cassette", "DatabaseClock", "Faults", "LocalEngine", "RecordedRun"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOME[name]), name)
    return value
