"""Marks on our own functions in pipelines: the parts of the context that they need, and whether they read a step's answer. Pure.

Workers decode only the parts of the context that a function needs; a user's function gets the live context. In: a function. Out: the same
function, marked; or its mark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

F = TypeVar("F")

ContextUse = Literal["live", "stored", "none"]


def without_context(function: F) -> F:
    """Mark a function that does not look at the context: it gets None."""
    return _marked("context_use", "none")(function)


def with_stored_context(function: F) -> F:
    """Mark a function that gets a `StoredContext`, and None if there is no context."""
    return _marked("context_use", "stored")(function)


def context_use(function: Any) -> ContextUse:
    """Return what a function is marked with."""
    use: ContextUse = getattr(function, "__flujo_context_use__", "live")
    return use


def appends_to(field: str) -> Callable[[F], F]:
    """Mark an agent that returns an item for a list of the context; the item's `result` is the step's output."""
    return _marked("appends_to", field)


def appended_field(agent: Any) -> str | None:
    """Return the field of the context that an agent's answers are appended to; None for all other agents."""
    return getattr(agent, "__flujo_appends_to__", None)


def reads_answer(function: F) -> F:
    """Mark a function that converts a valid answer, such as to a command, after the output processors and the final check."""
    return _marked("reads_answer", value=True)(function)


def is_answer_reader(processor: Any) -> bool:
    """Return whether an output processor is one of those."""
    return getattr(processor, "__flujo_reads_answer__", False) is True


def _marked(name: str, value: Any) -> Callable[[F], F]:
    def mark(function: F) -> F:
        setattr(function, f"__flujo_{name}__", value)
        return function

    return mark
