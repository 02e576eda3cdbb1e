"""Check hooks and static invariants without calling any, for the check before anything is sent, and for workers.

An invariant is an expression, a function of the output and the context after an attempt, or a reference to such a function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from flujo_client.contract.hooks import PAYLOADS, Payload
from flujo_client.errors import FlujoError
from flujo_client.pipeline.authoring import is_mock
from flujo_client.pipeline.compiled_text import Expressed, expression_of
from flujo_client.pipeline.reference import found_by, is_reference, load

HOOK, INVARIANT = "hook", "invariant"
"""Their names in error messages."""


def wanted(hook: Any) -> tuple[type[Payload], ...]:
    """Return the payloads that a hook is called with: those its first parameter is annotated with, else all.

    Raises TypeError if it cannot be called with one argument, and anything if its annotations cannot be read.
    """
    try:
        signature = inspect.signature(hook, eval_str=True)
    except ValueError:  # a compiled function may have no signature
        return PAYLOADS
    signature.bind(object())
    annotation = next(iter(signature.parameters.values())).annotation
    if annotation in (inspect.Parameter.empty, Any):
        return PAYLOADS
    named = [each for each in _members(annotation) if isinstance(each, type)]
    return tuple(payload for payload in PAYLOADS if any(issubclass(payload, each) for each in named))


def hooks_findings(hooks: Any, allowed: Sequence[str]) -> Iterator[str]:
    """Find what is wrong with a pipeline's hooks."""
    if not isinstance(hooks, list | tuple):
        yield f"its hooks must be a list of functions, got a {type(hooks).__name__}"
        return
    for hook in hooks:
        found, wrong = found_by(hook, allowed, HOOK)
        yield from [wrong] if wrong else _findings(found)


def name_of(hook: Any) -> str:
    """Return a hook's name in events and errors."""
    return hook if isinstance(hook, str) else str(getattr(hook, "__qualname__", type(hook).__name__))


def _findings(hook: Any) -> Iterator[str]:
    where = f"its hook {name_of(hook)}"
    if is_mock(hook):
        yield f"{where} is a mock, which no worker can rebuild"
        return
    if inspect.isclass(hook) or not callable(hook):
        yield f"{where} is {'a class' if inspect.isclass(hook) else f'a {type(hook).__name__}'}, not a function"
        return
    try:
        payloads = wanted(hook)
    except TypeError as error:
        yield f"{where} cannot be called with one payload: {error}"
    except Exception as error:  # noqa: BLE001 - an annotation is any expression
        yield f"{where}: its annotations cannot be read ({type(error).__name__}: {error}); import the names in them at run time"
    else:
        if not payloads:
            yield f"{where} would never be called: the annotation of its first parameter is not a payload"


def _members(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from _members(each)
    else:
        yield annotation


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
