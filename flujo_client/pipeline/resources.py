"""Check a pipeline's resources, and agents' `deps`, as far as possible without opening any: only an attempt calls a factory or enters a manager."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from flujo_client.pipeline.authoring import is_mock
from flujo_client.pipeline.function_code import can_call, signature_of
from flujo_client.pipeline.reference import RESOURCES, found_by
from flujo_client.plan.identity import asks_a_model


def is_async_manager(kind: type) -> bool:
    """Return whether instances are async context managers."""
    return hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__")


def is_manager(kind: type) -> bool:
    """Return whether instances are context managers."""
    return hasattr(kind, "__enter__") and hasattr(kind, "__exit__")


def is_factory(thing: Any) -> bool:
    """Return whether it is called to make what agents get: a function, a class or a partial. Other callables are resources themselves."""
    return inspect.isroutine(thing) or inspect.isclass(thing) or isinstance(thing, functools.partial)


def resources_findings(resources: Any, allowed: Sequence[str]) -> Iterator[str]:
    """Find what is wrong with a pipeline's resources."""
    found, wrong = found_by(resources, allowed, RESOURCES)
    if wrong:
        yield wrong
    elif is_mock(found):
        yield "its resources are a mock, which no worker can rebuild"
    elif is_factory(found) and (signature := signature_of(found)) is not None and not can_call(signature):
        yield f"its resources: {getattr(found, '__name__', 'the partial')} is called without arguments, but requires some"


def deps_type_of(agent: Any) -> Any:
    """Return the type of the deps that an agent wants, of the library's own agents or of ours; None for one that wants none."""
    agent = getattr(agent, "__flujo_asks__", agent)
    wanted = getattr(agent, "deps_type", None) if asks_a_model(agent) else None
    return None if wanted in (None, object, type(None), Any) else wanted


def fits(value: Any, wanted: Any) -> bool:
    """Return whether a value is of a type; yes for a type that cannot be asked, such as `dict[str, int]`."""
    try:
        return isinstance(value, wanted)
    except TypeError:
        return True


def deps_findings(agent: Any, resources: Any, model: Any) -> Iterator[str]:
    """Report an agent whose deps nothing can satisfy: neither the resources in force, as far as they are known, nor the context's model."""
    wanted = deps_type_of(agent)
    if wanted is None or _may_be(resources, wanted) or (inspect.isclass(model) and _is_subclass(model, wanted)):
        return
    name = getattr(wanted, "__name__", wanted)
    yield f"its agent needs deps of type {name}; make them with the pipeline's `resources`, or use that type as its context_model"


def _may_be(resources: Any, wanted: Any) -> bool:
    if resources is None:
        return False
    kind = resources if inspect.isclass(resources) else type(resources)
    if isinstance(resources, str) or is_manager(kind) or is_async_manager(kind):
        return True
    if inspect.isclass(resources):
        return _is_subclass(resources, wanted)
    return is_factory(resources) or fits(resources, wanted)


def _is_subclass(kind: type, wanted: Any) -> bool:
    try:
        return issubclass(kind, wanted)
    except TypeError:
        return True
