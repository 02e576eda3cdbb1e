"""Check a pipeline's resources as far as possible without opening any: for the check, and for workers.

It must not call a factory or enter a context manager: an attempt does, on a worker.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from flujo_client.errors import FlujoError
from flujo_client.pipeline.reference import RESOURCES, load


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
    if isinstance(resources, str):
        try:
            live = load(resources, allowed=allowed, what=RESOURCES)
        except FlujoError as error:
            yield error.message
        else:
            yield from () if isinstance(live, str) else resources_findings(live, allowed)
    elif type(resources).__module__.startswith("unittest.mock"):
        yield "its resources are a mock, which no worker can rebuild"
    elif is_factory(resources) and _needs_arguments(resources):
        yield f"its resources: {getattr(resources, '__name__', 'the partial')} is called without arguments, but requires some"


def _needs_arguments(factory: Any) -> bool:
    try:
        inspect.signature(factory).bind()
    except TypeError:
        return True
    except ValueError:  # a compiled function may have no signature
        return False
    return False
