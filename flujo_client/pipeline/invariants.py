"""Static invariants: conditions on the output and the context after every attempt of a step.

One is an expression, a function of the output and the context, or a reference to such a function. Workers decide when they are checked.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from flujo_client.errors import FlujoError
from flujo_client.pipeline.compiled_text import Expressed, expression_of
from flujo_client.pipeline.reference import is_reference, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

INVARIANT = "invariant"
"""Its name in error messages."""


def judge_of(invariant: Any, loaded: Callable[[str], Any]) -> Any:
    """Return the function that judges; `loaded` finds the one that a reference names."""
    if not isinstance(invariant, str):
        return invariant
    return loaded(invariant) if is_reference(invariant) else Expressed(invariant)


def shown_as(invariant: Any) -> str:
    """Return what errors call one invariant: its text, or its function's name."""
    return invariant if isinstance(invariant, str) else str(getattr(invariant, "__name__", type(invariant).__name__))


def invariant_findings(invariants: Any, allowed: Sequence[str]) -> Iterator[str]:
    """Find what is wrong with the invariants of a step or a pipeline."""
    if not isinstance(invariants, list | tuple):
        yield f"static_invariants must be a list, got a {type(invariants).__name__}"
        return
    for index, invariant in enumerate(invariants):
        if problem := _problem(invariant, allowed):
            yield f"static_invariants[{index}]: {problem}"


def _problem(invariant: Any, allowed: Sequence[str]) -> str | None:
    try:
        judge = judge_of(invariant, partial(load, allowed=allowed, what=INVARIANT))
        if isinstance(judge, Expressed):
            expression_of(judge.text)
    except FlujoError as error:
        return error.message
    if callable(judge) and not isinstance(judge, type):
        return None
    return f"it must be an expression or a function of the output and the context, got a {type(judge).__name__}"
