"""Marks on our own functions in pipelines: the parts of the context that are decoded for them, and whether they read a step's answer. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

F = TypeVar("F")

ContextUse = Literal["live", "stored", "none"]


def _marked(name: str, value: Any) -> Callable[[F], F]:
    def mark(function: F) -> F:
        setattr(function, f"__flujo_{name}__", value)
        return function

    return mark


without_context = _marked("context_use", "none")
"""Mark a function that does not look at the context: it gets None."""
with_stored_context = _marked("context_use", "stored")
"""Mark a function that gets a `StoredContext`, and None if there is no context."""
reads_answer = _marked("reads_answer", value=True)
"""Mark a function that converts a valid answer, such as to a command, after the output processors and the final check."""


def appends_to(field: str) -> Callable[[F], F]:
    """Mark an agent that returns an item for a list of the context; the item's `result` is the step's output."""
    return _marked("appends_to", field)


def context_use(function: Any) -> ContextUse:
    """Return what a function is marked with."""
    use: ContextUse = getattr(function, "__flujo_context_use__", "live")
    return use


def appended_field(agent: Any) -> str | None:
    """Return the field of the context that an agent's answers are appended to; None for all other agents."""
    return getattr(agent, "__flujo_appends_to__", None)


def is_answer_reader(processor: Any) -> bool:
    """Return whether an output processor is one of those."""
    return getattr(processor, "__flujo_reads_answer__", False) is True
