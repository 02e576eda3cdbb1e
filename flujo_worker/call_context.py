"""Context variables of a user's call: those of its caller, and a decimal context that nothing else shares.

A copy of a context is shallow: `decimal.getcontext().prec = 5` in a step would change the object that the copy and its origin hold, and with
it the arithmetic of the next step on this thread or loop.
"""

from __future__ import annotations

import decimal
from contextvars import Context, copy_context


def context_of_call() -> Context:
    """Copy the present context for a call, with the decimal context that every thread begins with (`decimal.DefaultContext`)."""
    context = copy_context()
    context.run(decimal.setcontext, decimal.DefaultContext)  # which copies that one
    return context
