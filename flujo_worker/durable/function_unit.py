"""`unit`: a call in a plain function of a durable step, on record as an agent's calls are."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, overload

from flujo_client.errors import ConfigurationError, NonRetryableError, SerializationError
from flujo_client.serial import canonical, encode
from flujo_worker.durable.journal import Journal
from flujo_worker.durable.names import UnitCall
from flujo_worker.runtime.attempt_run import current_run, in_thread

T = TypeVar("T")


@overload
async def unit(function: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any) -> T: ...
@overload
async def unit(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T: ...
async def unit(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Return what a function returns. In an attempt of a durable step the call is on record: it is made once, however often the step is performed.

    A call is found again by the function's module and name and its arguments. Outside of durable steps it is a plain call. A function that is
    not async is called in a thread.

    Args:
        function: one of a module.
        *args: its arguments: plain data, models and dataclasses.
        **kwargs: those by name.

    Raises:
        ConfigurationError: the function has no name of its own, such as a lambda, or is given the pipeline's context, whose changes would be lost.
        NonRetryableError: an argument or the result cannot be recorded.
    """
    call = partial(_called, function, args, kwargs)
    run = current_run()
    if run is None or run.work is None or not run.work.step.config.durable or not isinstance(run.journal, Journal):
        return await call()
    name = _name_of(function)
    if any(each is not None and each is run.context for each in (*args, *kwargs.values())):
        what = f"unit({name}) got the pipeline's context: what it changes there would be lost when the call is answered from record"
        way_out = "pass it the values it needs, and write its result after it"
        raise ConfigurationError(what, suggestion=way_out, code="UNIT_FUNCTION")
    try:
        asked = canonical(encode([list(args), kwargs], path="arguments"))
    except SerializationError as error:
        what = f"step '{run.work.step.name}': a call of {name} cannot be recorded: {error.message}"
        way_out = "give it plain data, models or dataclasses"
        raise NonRetryableError(what, suggestion=way_out, code="UNIT_RESULT") from None
    return (await run.journal.perform(UnitCall(name, asked), call))[0]


async def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    result = await in_thread(partial(function, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result


def _name_of(function: Any) -> str:
    name = getattr(function, "__qualname__", "<lambda>")
    if "<" in name or inspect.ismethod(function):
        what = f"unit() got {function!r:.80}, which cannot be found again by its name"
        raise ConfigurationError(what, suggestion="give it a function of a module", code="UNIT_FUNCTION")
    return f"{function.__module__}:{name}"
