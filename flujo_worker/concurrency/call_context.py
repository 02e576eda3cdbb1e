"""Context variables of a user's call: those of its caller, and a decimal context that nothing else shares.

A copy of a context is shallow: `decimal.getcontext().prec = 5` in a step would change the object that the copy and its origin hold, and with
it the arithmetic of the next step on this thread or loop.

One variable is ours: what an attempt does when one of its statements has to wait for a lock (`waiting_for_locks`).
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context

_LEAVE_SLOT: ContextVar[Callable[[], object] | None] = ContextVar("leave_slot", default=None)


def context_of_call() -> Context:
    """Copy the present context for a call, with the decimal context that every thread begins with (`decimal.DefaultContext`)."""
    context = copy_context()
    context.run(decimal.setcontext, decimal.DefaultContext)  # which copies that one
    return context


class waiting_for_locks:  # noqa: N801 - used as a function is
    """Let statements that find a row locked be asked again until they have it, instead of raising `RowLocked`: `with waiting_for_locks()`.

    `leave_slot` is called as the wait begins, so that other work may take this work's place.
    """

    def __init__(self, leave_slot: Callable[[], object] = lambda: None) -> None:
        self._leave_slot = leave_slot

    def __enter__(self) -> None:
        before = _LEAVE_SLOT.get()
        self._token = _LEAVE_SLOT.set(self._leave_slot if before is None else before)

    def __exit__(self, *_: object) -> None:
        _LEAVE_SLOT.reset(self._token)


def may_wait_for_locks() -> bool:
    """Return whether the caller waits for locks; if it does, its slot is left to others."""
    leave_slot = _LEAVE_SLOT.get()
    if leave_slot is not None:
        leave_slot()
    return leave_slot is not None
