"""An agent's identity in a plan's fingerprint: plain data, without addresses, reprs of objects or secrets, that is the same in every process."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from typing import Any, Final

from flujo_client.serial import digest, importable, safe_serialize

_MAX_WRAPPERS: Final = 64


def identify(thing: Any) -> dict[str, Any]:
    """Describe an agent, plugin or validator for the plan.

    An object may say itself what it is by a mapping `__flujo_identity__`; a wrapper by `__flujo_target__` points to what it wraps.
    """
    if isinstance(thing, str):
        return {"ref": thing}
    own = getattr(thing, "__flujo_identity__", None)
    if isinstance(own, dict):
        return own
    if isinstance(thing, functools.partial):
        return {"partial": identify(thing.func), "keywords": sorted(thing.keywords)}
    target = getattr(thing, "__flujo_target__", None)
    if target is not None:
        return {"type": _name(type(thing)), "target": identify(target)}
    if hasattr(thing, "__qualname__"):
        return {"callable": _name(thing)}
    return {"type": _name(type(thing)), **agent_traits(thing)}


def whole(value: Any) -> Any:
    """Return any value as plain data, however large it is: of two that differ at their far end, each has its own fingerprint."""
    return safe_serialize(value, max_nodes=sys.maxsize)


def _name(thing: Any) -> str:
    if type(thing).__module__ == "celery.local":  # a task, which is a proxy until its app is finalized
        thing = thing._get_current_object()  # noqa: SLF001
    module = str(getattr(thing, "__module__", "?"))
    return f"{importable(module) or module}:{getattr(thing, '__qualname__', '?')}"


def defaults_of(agent: Any) -> Mapping[str, Any]:
    """Return the defaults that an agent, or the one that it wraps, has for the steps that run it: `__flujo_defaults__`."""
    for _ in range(_MAX_WRAPPERS):
        own = getattr(agent, "__flujo_defaults__", None)
        if isinstance(own, Mapping):
            return own
        if (agent := getattr(agent, "__flujo_target__", None)) is None:
            break
    return {}


def agent_name(agent: Any) -> str:
    """Return an agent's name in events: its own name, else its function's or class's."""
    name = getattr(agent, "name", None)
    return name if isinstance(name, str) and name else str(getattr(agent, "__name__", type(agent).__name__))


def asks_a_model(agent: Any) -> bool:
    """Return whether an agent is pydantic-ai's or of a class of ours, so that its `model` is pydantic-ai's too."""
    return any(base.__module__.partition(".")[0] in {"pydantic_ai", "flujo_worker"} for base in type(agent).__mro__)


def model_name(agent: Any) -> str | None:
    """Return which model an agent asks, as far as it says."""
    model = getattr(agent, "model", None)
    if model is None or isinstance(model, str):
        return model
    return str(getattr(model, "model_name", None) or _name(model if hasattr(model, "__qualname__") else type(model)))


def agent_traits(agent: Any) -> dict[str, Any]:
    """Return what two agents of one class differ by: the model, the prompts, the shape of the output."""
    traits: dict[str, Any] = {}
    model = model_name(agent)
    if model is not None:
        traits["model"] = model
    output_type = getattr(agent, "output_type", None)
    if output_type is not None:
        traits["output"] = _name(output_type) if isinstance(output_type, type) else digest(whole(_schema(output_type)))
    prompts = getattr(agent, "_system_prompts", None) or getattr(agent, "system_prompt", None)
    if isinstance(prompts, str) or (
        isinstance(prompts, (list, tuple)) and all(isinstance(each, str) for each in prompts)
    ):
        traits["prompt"] = digest(whole(prompts))
    return traits


def _schema(output_type: Any) -> Any:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(output_type).json_schema()
    except (AttributeError, PydanticUserError, TypeError, ValueError):
        marked = getattr(output_type, "output", getattr(output_type, "outputs", None))  # pydantic-ai's markers
        name = _name(type(output_type))
        return name if marked is None else [name, _name(marked) if inspect.isroutine(marked) else _schema(marked)]
