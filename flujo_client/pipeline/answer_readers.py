"""What a container puts behind a step's own output processors to read its answer: it gets what the final check has passed.

Pure. In: a function. Out: the same one, marked; whether one is marked.
"""

from __future__ import annotations

from typing import Any, TypeVar

F = TypeVar("F")


def reads_answer(function: F) -> F:
    """Mark a function that makes something else of a valid answer, such as a command."""
    function.__flujo_reads_answer__ = True  # type: ignore[attr-defined]
    return function


def is_answer_reader(processor: Any) -> bool:
    """Return whether an output processor is one of those."""
    return getattr(processor, "__flujo_reads_answer__", False) is True
