"""What a step was given by mistake, with the way out: an option it does not have, a coroutine in place of a function."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from flujo_client.contract.suggestions import closest_match
from flujo_client.errors import PipelineError


def refuse_unknown(kind: type, args: Sequence[Any], given: Mapping[str, Any], config: Collection[str]) -> None:
    """Raise TypeError for a keyword that is no option of a step's class, with the nearest option.

    Args:
        kind: the class.
        args: the positional arguments, of which the first is the step's name.
        given: the keywords.
        config: the options of `StepConfig`.
    """
    own = {each.name for each in fields(kind)}
    for name in given:
        if name not in own and not isinstance(getattr(kind, name, None), property):  # an alias of a field is one
            near = closest_match(name, [*own, *config])
            step = f"step '{args[0]}': " if args else ""
            raise TypeError(f"{step}{kind.__name__} has no option '{name}'{_way_out(near, config)}")


def refuse_unknown_of_decorator(given: Iterable[str], own: Collection[str], config: Collection[str]) -> None:
    """Raise TypeError for a keyword that `@step` does not take, with the nearest one."""
    for name in given:
        if name not in own and name not in config:
            near = closest_match(name, [*own, *config])
            raise TypeError(f"@step has no option '{name}'" + (f": write @step({near}=…)" if near else ""))


def _way_out(near: str | None, config: Collection[str]) -> str:
    if near is None:
        return ""
    return f": write config=StepConfig({near}=…)" if near in config else f": write {near}=…"


def refuse_coroutine(step: str, agent: Any) -> None:
    """Raise PipelineError for the coroutine that calling an async function has returned."""
    if inspect.iscoroutine(agent):
        agent.close()  # it will not be awaited, and need not be warned about
        name = agent.__name__
        message = f"step '{step}' was given a coroutine, the result of calling {name}"
        raise PipelineError(message, suggestion=f'give it the function itself: Step("{step}", {name})')
