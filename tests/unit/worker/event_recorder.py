"""A pytest plugin: record the names of all events that a process's tests emit, in the file that `TOLD_EVENTS` names."""

import os
from functools import wraps
from pathlib import Path

from flujo_worker.store.memory.tables import Tables

names: set[str] = set()
_add_event = Tables.add_event


@wraps(_add_event)
def _recorded(self, run, key, name, *rest):  # type: ignore[no-untyped-def]
    names.add(name)
    return _add_event(self, run, key, name, *rest)


Tables.add_event = _recorded  # type: ignore[method-assign]


def pytest_sessionfinish() -> None:
    Path(os.environ["TOLD_EVENTS"]).write_text("\n".join(sorted(names)), encoding="utf-8")
