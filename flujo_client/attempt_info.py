"""Which attempt user code runs in: for its own logs, for keys of calls that must not be made twice, for exporters of traces.

It must not reach any service. In: what the worker sets once for each attempt. Out: a value, in the attempt's own tasks and threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


@dataclass(frozen=True, slots=True)
class UnitInfo:
    """The call of a durable attempt that is being made.

    Attributes:
        operation: its name, such as `researcher__function_toolset__<agent>.call_tool:send`.
        effect_id: the same whenever this call is made again, by any attempt at the step: the key for a service that ignores repetitions.
    """

    operation: str
    effect_id: str


class RunningAttempt(Protocol):
    """What a worker knows of the attempt that it performs."""

    @property
    def info(self) -> AttemptInfo | None:
        """Return what user code may know of it."""


_running: ContextVar[RunningAttempt | None] = ContextVar("flujo_attempt", default=None)

_unit: ContextVar[UnitInfo | None] = ContextVar("flujo_unit", default=None)


def current_unit() -> UnitInfo | None:
    """Return the call of a durable attempt that this code runs in; None outside of one."""
    return _unit.get()


@contextmanager
def running_in_unit(unit: UnitInfo) -> Iterator[None]:
    """Set the current unit for the code inside. For workers."""
    token = _unit.set(unit)
    try:
        yield
    finally:
        _unit.reset(token)


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
