"""Find the types that a step's function declares, convert its input to them by pydantic's rules, and call the function alone.

Annotations that cannot be resolved, and types that pydantic cannot check, are `Any`: they are neither checked nor converted.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections import abc
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from types import FunctionType, MethodType, UnionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args, get_origin

import pydantic

from flujo_client.errors import MissingAgentError, TypeMismatchError
from flujo_client.pipeline.function_code import signature_of
from flujo_client.plan.identity import asks_a_model
from flujo_client.schemas.fail_fast import fail_fast, fail_fast_json, places_of, refuse_ambiguous
from flujo_client.serial import Resolver

if TYPE_CHECKING:
    from flujo_client.pipeline.step import Step


_FUNCTIONS: Final = 1024
"""The maximum number of remembered functions: reading annotations and building validators is slow."""
_LAZY: Final = (abc.Iterable, abc.Iterator, abc.Generator, abc.AsyncIterable, abc.AsyncIterator)
"""Pydantic replaces a value of such a type with an iterator that can be read once."""
_SHOWN: Final = 5
"""How many of a value's faults are named in an error."""
_Parameter: Final = inspect.Parameter


class DeclaredTypes(NamedTuple):
    """The types that a function declares, `Any` where none is known: `takes` of its first parameter, `gives` of what it returns."""

    parameter: str = ""
    takes: Any = Any
    gives: Any = Any


def declared_types(agent: Any) -> DeclaredTypes:
    """Return the types that a step's function, or its agent's `run`, declares; nothing for agents that ask a model."""
    function = _function_of(agent)
    return DeclaredTypes() if function is None else _declared(function)


def typed_input(agent: Any, value: Any, *, step: str) -> Any:
    """Return a step's input as the type that its function declares, or raise TypeMismatchError, which names the places but not the values."""
    function = _function_of(agent)
    if function is None or (checked := _checked(function)) is None:
        return value
    own_class, validator = checked
    if own_class is not None and isinstance(value, own_class):
        return value
    try:
        return _validated(validator, value)
    except pydantic.ValidationError as error:
        problems = places_of(error, most=_SHOWN)
    types = _declared(function)
    raise TypeMismatchError(  # without its cause, which shows the values
        f"step '{step}': its input does not fit parameter `{types.parameter}: {type_text(types.takes)}`: {problems}",
        suggestion="give it a value of that type, or annotate the parameter with the type that it gets",
    )


def _validated(validator: Any, value: Any) -> Any:
    """Validate a value as Python, and plain data also as JSON, from which strict types take more."""
    refuse_ambiguous(validator, value)
    try:
        fail_fast(validator, value)
        return validator.validate_python(value)
    except pydantic.ValidationError:
        with suppress(pydantic.ValidationError, TypeError, ValueError, RecursionError):
            text = json.dumps(value, allow_nan=False)
            fail_fast_json(validator, text)
            return validator.validate_json(text)
        raise


def type_text(annotation: Any) -> str:
    """Write a type as its author would, without modules."""
    if annotation is type(None):
        return "None"
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (typing.Union, UnionType):
        return " | ".join(map(type_text, parts))
    name = getattr(origin or annotation, "__name__", None)
    if name is None or origin in (typing.Annotated, typing.Literal):
        return repr(annotation).replace("typing.", "")
    return f"{name}[{', '.join('...' if each is ... else type_text(each) for each in parts)}]" if parts else str(name)


class _Function(NamedTuple):
    """What a call of an agent runs, and how many of its first parameters are taken: `self` of a method."""

    call: Callable[..., Any]
    taken: int


def _function_of(agent: Any) -> _Function | None:
    """Return what a call of an agent runs; None if it asks a model. A bound method is another object each time, its function is not."""
    if type(agent) is FunctionType:
        return _Function(agent, 0)
    if asks_a_model(agent):
        return None
    call = getattr(agent, "run", agent)
    if not isinstance(call, FunctionType | MethodType | partial | type) and not hasattr(call, "__wrapped__"):
        call = getattr(call, "__call__", call)  # noqa: B004 - the function is wanted, not whether there is one
    return _Function(call.__func__, 1) if isinstance(call, MethodType) else _Function(call, 0)


@lru_cache(maxsize=_FUNCTIONS)
def _declared(function: _Function) -> DeclaredTypes:
    call, signature = function.call, signature_of(function.call)
    if signature is None:
        return DeclaredTypes()
    place = inspect.unwrap(call.func if isinstance(call, partial) else call)
    names = getattr(place, "__globals__", {})
    gives = _resolved(signature.return_annotation, names)
    if get_origin(gives) in (abc.Coroutine, abc.Awaitable):
        gives = get_args(gives)[-1]
    parameters = list(signature.parameters.values())[function.taken :]
    if not parameters or parameters[0].kind not in (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD):
        return DeclaredTypes(gives=gives)
    takes = _resolved(parameters[0].annotation, names)
    if parameters[0].default is None and takes is not Any:
        takes = typing.Optional[takes]  # noqa: UP045 - `takes | None` fails for some types
    return DeclaredTypes(parameters[0].name, takes, gives)


def _resolved(annotation: Any, names: dict[str, Any]) -> Any:
    """Return the type that an annotation names; `Any` where it names nothing at run time, such as a class imported for type checkers only."""
    if annotation is _Parameter.empty:
        return Any

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["it"]
    except Exception:  # noqa: BLE001 - an annotation may be any expression
        return Any


@lru_cache(maxsize=_FUNCTIONS)
def _checked(function: _Function) -> tuple[type | None, Any] | None:
    """Return the class whose instances stay as they are, if there is one, and what validates anything else; None if any value is accepted."""
    takes = _declared(function).takes
    if takes is Any or takes is object or _is_lazy(takes):
        return None
    for config in (None, pydantic.ConfigDict(arbitrary_types_allowed=True)):
        try:
            adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(takes, config=config)
            adapter.rebuild(raise_errors=True)
            return _own_class(takes), adapter.validator
        except (pydantic.errors.PydanticUserError, NameError, TypeError):
            continue
    return None


def _is_lazy(annotation: Any) -> bool:
    kind = get_origin(annotation) or annotation
    return any(kind is each for each in _LAZY) or any(map(_is_lazy, get_args(annotation)))


def _own_class(takes: Any) -> type | None:
    """Return the type itself if it is a class with instances, as opposed to a `TypedDict`, a protocol or `list[int]`."""
    try:
        isinstance(None, takes)
    except TypeError:
        return None
    return takes if isinstance(takes, type) else None


async def call_alone(step: Step, value: Any, named: Mapping[str, Any]) -> Any:
    """Call a step's agent with a value and with the named values that it takes. Raises MissingAgentError if there is no agent."""
    agent = Resolver(["*"])(step.agent) if isinstance(step.agent, str) else step.agent
    function = getattr(agent, "run", agent)
    if not callable(function):
        suggestion = "call `arun` on a step with a function or an agent; run others with flujo_worker.LocalEngine"
        raise MissingAgentError(f"step '{step.name}' has no agent that can be called here", suggestion=suggestion)
    parameters = inspect.signature(function).parameters
    takes_all = any(each.kind is _Parameter.VAR_KEYWORD for each in parameters.values())
    taken = {name: each for name, each in named.items() if takes_all or name in parameters}
    given = function(typed_input(agent, value, step=step.name), **taken)
    return await given if inspect.isawaitable(given) else given
