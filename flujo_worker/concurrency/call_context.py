"""Context variables of a user's call: those of its caller, and a decimal context that nothing else shares.

A copy of a context is shallow: `decimal.getcontext().prec = 5` in a step would change the object that the copy and its origin hold, and with
it the arithmetic of the next step on this thread or loop.

One variable is ours: what an attempt does when one of its statements has to wait for a lock (`waiting_for_locks`).
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import TypeVar

T = TypeVar("T")

_LEAVE_SLOT: ContextVar[Callable[[], object] | None] = ContextVar("leave_slot", default=None)


@contextmanager
def setting(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a variable for what runs inside."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def context_of_call() -> Context:
    """Copy the present context for a call, with the decimal context that every thread begins with (`decimal.DefaultContext`)."""
    context = copy_context()
    context.run(decimal.setcontext, decimal.DefaultContext)  # which copies that one
    return context


def wait_for_locks(leave_slot: Callable[[], object]) -> None:
    """Let statements in this context that find a row locked be asked again until they have it, instead of raising `RowLocked`.

    `leave_slot` is called as the wait begins, so that other work may take this work's place.
    """
    _LEAVE_SLOT.set(leave_slot)


def waiting_for_locks() -> AbstractContextManager[None]:
    """Do what `wait_for_locks` does for what runs inside, which has no slot to leave."""
    return setting(_LEAVE_SLOT, lambda: None)


def may_wait_for_locks() -> bool:
    """Return whether the caller waits for locks; if it does, its slot is left to others."""
    leave_slot = _LEAVE_SLOT.get()
    if leave_slot is not None:
        leave_slot()
    return leave_slot is not None
