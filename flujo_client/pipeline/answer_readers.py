"""Mark functions that read a step's answer for its container, after the step's output processors and the final check.

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
