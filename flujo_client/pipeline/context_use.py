"""Mark the parts of the context that our own functions in pipelines need, so that workers decode only those.

A user's function gets the live context. Pure. In: a function. Out: the same one, marked; its mark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

F = TypeVar("F")

ContextUse = Literal["live", "stored", "none"]


def without_context(function: F) -> F:
    """Mark a function that does not look at the context: it gets None."""
    return _marked(function, "none")


def with_stored_context(function: F) -> F:
    """Mark a function that gets a `StoredContext`, and None if there is no context."""
    return _marked(function, "stored")


def context_use(function: Any) -> ContextUse:
    """Return what a function is marked with."""
    use: ContextUse = getattr(function, "__flujo_context_use__", "live")
    return use


def appends_to(field: str) -> Callable[[F], F]:
    """Mark an agent that returns an item for a list of the context; the item's `result` is the step's output."""

    def marked(function: F) -> F:
        function.__flujo_appends_to__ = field  # type: ignore[attr-defined]
        return function

    return marked


def appended_field(agent: Any) -> str | None:
    """Return the field of the context that an agent's answers are appended to; None for all other agents."""
    return getattr(agent, "__flujo_appends_to__", None)


def _marked(function: F, use: ContextUse) -> F:
    function.__flujo_context_use__ = use  # type: ignore[attr-defined]
    return function
