"""A pipeline's hooks, as far as can be checked without calling any: which payloads each is called with, and what is wrong with it.

For the check before anything is sent, and for workers. Nothing here calls a hook.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from flujo_client.contract.hooks import PAYLOADS, Payload
from flujo_client.errors import FlujoError
from flujo_client.pipeline.reference import load

HOOK = "hook"
"""The name of a hook in error messages."""


def wanted(hook: Any) -> tuple[type[Payload], ...]:
    """Return the payloads that a hook is called with: those its first parameter is annotated with, else all.

    Raises:
        TypeError: it cannot be called with one argument.
        Exception: its annotations cannot be read.
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
        yield from _findings(hook, allowed)


def name_of(hook: Any) -> str:
    """Return a hook's name in events and errors."""
    return hook if isinstance(hook, str) else str(getattr(hook, "__qualname__", type(hook).__name__))


def _findings(hook: Any, allowed: Sequence[str]) -> Iterator[str]:
    if isinstance(hook, str):
        try:
            hook = load(hook, allowed=allowed, what=HOOK)
        except FlujoError as error:
            yield error.message
            return
    where = f"its hook {name_of(hook)}"
    if type(hook).__module__.startswith("unittest.mock"):
        yield f"{where} is a mock, which no worker can rebuild"
    elif inspect.isclass(hook) or not callable(hook):
        yield f"{where} is {'a class' if inspect.isclass(hook) else f'a {type(hook).__name__}'}, not a function"
    else:
        yield from _called_findings(where, hook)


def _called_findings(where: str, hook: Any) -> Iterator[str]:
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
