"""Which attempt user code runs in: for its own logs, for keys of calls that must not be made twice, for exporters of traces.

It must not reach any service. In: what the worker sets once for each attempt. Out: a value, in the attempt's own tasks and threads.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """The attempt that is being performed.

    Attributes:
        run_id: its run.
        key: its own key, the same whenever it is delivered again.
        address: the scope it is in, such as `review/loop#3`; the empty text for a run's top level.
        step: its step.
        number: which try at the step it is, counted from 1.
        trace_parent: the W3C trace context that the run was enqueued with, or None.
        queue: the Celery queue of its message.
        claim_id: this execution of the attempt, drawn at random: no other execution has it, and the attempt's record keeps the one that was merged.
    """

    run_id: str
    key: str
    address: str
    step: str
    number: int
    trace_parent: str | None = None
    queue: str = ""
    claim_id: str = ""


class RunningAttempt(Protocol):
    """What a worker knows of the attempt that it performs."""

    @property
    def info(self) -> AttemptInfo | None:
        """Return what user code may know of it."""


_running: ContextVar[RunningAttempt | None] = ContextVar("flujo_attempt", default=None)


def current_attempt() -> AttemptInfo | None:
    """Return the attempt that this code runs in; None outside of one, as in a loop's condition or in a test of a bare function."""
    running = _running.get()
    return None if running is None else running.info


def running_attempt() -> RunningAttempt | None:
    """Return the worker's own record of the attempt that this code runs in. For workers."""
    return _running.get()


def running_as(running: RunningAttempt | None) -> None:
    """Set the current attempt for all that runs in this context from now on. For workers."""
    _running.set(running)
