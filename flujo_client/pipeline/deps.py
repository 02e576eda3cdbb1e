"""Whether an agent on pydantic-ai can be given the `deps` that it declares: for the check, and for workers. Imports no agent library."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from flujo_client.pipeline.resources import is_async_manager, is_factory, is_manager
from flujo_client.plan.identity import asks_a_model


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
    """Report an agent whose deps nothing available can satisfy.

    Args:
        agent: a step's agent.
        resources: those in force at the step; the value of a factory or a context manager is known only in the attempt.
        model: the context's model; None if there is no context or it is unknown.
    """
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
