"""Write into the attempt's copy of the context: outputs by `sink_to`, `updates_context`, `step_outputs`; temporary values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from pydantic import BaseModel

from flujo_client.contract.context import ContextState, PipelineContext
from flujo_client.errors import ContextFieldError, ContextMergeError
from flujo_client.pipeline.step import Step
from flujo_worker.runtime.question import fields_in, fitted


def written(step: Step, output: Any, context: Any, field: str | None = None, item: Any = None) -> Any:
    """Append an item to a list of the context, if there is one; then do what `absorb` does."""
    if field is not None:
        setattr(context, field, [*getattr(context, field), item])
    return absorb(step, output, context)


def absorb(step: Step, output: Any, context: Any) -> Any:
    """Write a step's output to its sinks; return the context, validated once.

    Raises:
        ContextFieldError: the context has no such field.
        ContextMergeError: the output does not fit the context; the step and the fields are named.
    """
    if context is None:
        return None
    if step.sink_to:
        context = _sink(step, output, context)
    if step.updates_context:
        context = _update(step, output, context)
    if isinstance(getattr(context, "step_outputs", None), dict):
        context.step_outputs[step.name] = output
    return context


def _sink(step: Step, output: Any, context: Any) -> Any:
    first, *rest = (step.sink_to or "").split(".")
    if not rest or (step.validate_fields and first not in type(context).model_fields):
        return _assign(step, context, {first: output})
    place = getattr(context, first, None)
    for part in rest[:-1]:
        place = place.get(part) if isinstance(place, dict) else getattr(place, part, None)
    if isinstance(place, dict):
        place[rest[-1]] = output
    elif isinstance(place, BaseModel):
        setattr(place, rest[-1], getattr(_assign(step, place, {rest[-1]: output}), rest[-1]))
    elif place is not None and hasattr(place, rest[-1]):
        setattr(place, rest[-1], output)
    else:
        what = f"step '{step.name}': sink_to '{step.sink_to}' does not exist in {type(context).__name__}"
        raise ContextFieldError(what)
    return context


def _update(step: Step, output: Any, context: Any) -> Any:
    if isinstance(output, BaseModel):
        changes: Mapping[str, Any] = {name: getattr(output, name) for name in output.model_fields_set}
    elif isinstance(output, dict):
        changes = output
    else:
        what = f"step '{step.name}': updates_context needs a mapping or a model, not {type(output).__name__}"
        raise ContextMergeError(what, suggestion="give it sink_to='field' to store the output as it is")
    return _assign(step, context, {key: _deep(getattr(context, key, None), value) for key, value in changes.items()})


def _deep(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _deep(old.get(key), value) for key, value in new.items()}}
    return new


def _assign(step: Step, context: Any, changes: Mapping[str, Any]) -> Any:
    model = type(context)
    unknown = [key for key in changes if key not in model.model_fields]
    if unknown and (step.validate_fields or model.model_config.get("extra") != "allow"):
        raise ContextFieldError(f"step '{step.name}': {model.__name__} has no field {', '.join(map(repr, unknown))}")
    return fitted(model, fields_in(context) | dict(changes), f"step '{step.name}': the output")


def mark(context: PipelineContext, state: ContextState, message: str | None) -> None:
    """Write into a context whether its run waits for a person, and for what answer; in `scratchpad["status"]` too, unless a step has written there."""
    context.status, context.pause_message = state, message
    paused, scratchpad = {"status": ContextState.PAUSED.value}, context.scratchpad
    if state is ContextState.PAUSED:
        context.scratchpad = {**paused, **scratchpad}
    elif scratchpad.get("status") == paused["status"]:
        context.scratchpad = {key: value for key, value in scratchpad.items() if key != "status"}


def leave_as_is() -> None:
    """Take nothing out of a context."""


def lend(context: Any, key: str, value: Any) -> Callable[[], None] | None:
    """Put a value into a context temporarily; return the function that removes it, or None if the context cannot hold it.

    In a model that does not declare the key it is in the `__dict__`, bypassing validation and extra fields, where the serialiser does not
    look.
    """
    if _declares(type(context), key):
        try:
            setattr(context, key, value)
        except (AttributeError, TypeError, ValueError):
            return None
        return leave_as_is
    place = context if isinstance(context, MutableMapping) else getattr(context, "__dict__", None)
    if place is None:
        return None
    earlier = {key: place[key]} if key in place else {}
    place[key] = value

    def forget() -> None:
        place.pop(key, None)
        place.update(earlier)

    return forget


def _declares(kind: type, key: str) -> bool:
    declared = ("model_fields", "__private_attributes__", "__dataclass_fields__")
    return any(key in getattr(kind, names, ()) for names in declared)
