"""Which attempt user code runs in: for its own logs, for keys of calls that must not be made twice, for exporters of traces.

It must not reach any service. In: what the worker says once for each attempt. Out: a value, in the attempt's own tasks and threads.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_current: ContextVar[AttemptInfo | None] = ContextVar("flujo_attempt", default=None)


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """The attempt that is being performed.

    Attributes:
        run_id: its run.
        key: its own key, the same whenever it is delivered again.
        address: the scope it stands in, such as `review/loop#3`; the empty text for a run's top level.
        step: its step.
        number: which try at the step it is, counted from 1.
        trace_parent: the W3C trace context that the run was enqueued with, or None (SYS-20).
    """

    run_id: str
    key: str
    address: str
    step: str
    number: int
    trace_parent: str | None = None


def current_attempt() -> AttemptInfo | None:
    """Tell which attempt this code runs in; None outside of one, as in a loop's condition or in a test of a bare function."""
    return _current.get()


@contextmanager
def performing(info: AttemptInfo) -> Iterator[None]:
    """Let all that runs inside know its attempt. For workers."""
    token = _current.set(info)
    try:
        yield
    finally:
        _current.reset(token)
