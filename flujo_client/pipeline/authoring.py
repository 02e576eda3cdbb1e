"""Help for the authors of steps: the display of a step in a console, errors for wrong options that suggest the right one, and faults with their rules."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, Final, Self

from pydantic import BaseModel

from flujo_client.contract.suggestions import closest_match
from flujo_client.errors import PipelineError

NO_RULE: Final = "Y-PIPELINE"
"""The rule of faults without a separate one."""


class Ruled(str):
    """The description of a fault in a step, with the rule of `flujo validate` that it breaks."""

    __slots__ = ("rule",)
    rule: str

    def __new__(cls, text: str, rule: str = NO_RULE) -> Self:
        fault = super().__new__(cls, text)
        fault.rule = rule
        return fault


def under(rule: str, texts: Iterable[str]) -> Iterator[Ruled]:
    """Yield faults, those that name no rule under this one."""
    return (each if isinstance(each, Ruled) else Ruled(each, rule) for each in texts)


def refuse_unknown(kind: type, args: Sequence[Any], given: Mapping[str, Any], config: Collection[str]) -> None:
    """Raise TypeError, with the nearest option, for a keyword that is no option of a step's class; `config` are the options of `StepConfig`."""
    own = {each.name for each in fields(kind)}
    for name in given:
        if name not in own and not isinstance(getattr(kind, name, None), property):  # an alias of a field is one
            near = closest_match(name, [*own, *config])
            way_out = f": write config=StepConfig({near}=…)" if near in config else f": write {near}=…"
            step = f"step '{args[0]}': " if args else ""
            raise TypeError(f"{step}{kind.__name__} has no option '{name}'{way_out if near else ''}")


def refuse_coroutine(step: str, agent: Any) -> None:
    """Raise PipelineError for the coroutine that calling an async function has returned."""
    if inspect.iscoroutine(agent):
        agent.close()  # it will not be awaited, and need not be warned about
        name = agent.__name__
        message = f"step '{step}' was given a coroutine, the result of calling {name}"
        raise PipelineError(message, suggestion=f'give it the function itself: Step("{step}", {name})')


def is_mock(thing: Any) -> bool:
    """Return whether it is a mock of `unittest`, which no worker can rebuild."""
    return type(thing).__module__.startswith("unittest.mock")


def as_agent(thing: Any) -> Any:
    """Return an agent unchanged, and a Celery task, or the signature of one, as the agent that calls it."""
    classes = (("celery.app.task", "Task"), ("celery.canvas", "Signature"))
    if not any(isinstance(thing, getattr(sys.modules.get(module), name, ())) for module, name in classes):
        return thing
    from flujo_client.pipeline.celery_task import TaskAgent

    return TaskAgent.of(thing)


class BriefRepr:
    """Show the fields of a dataclass that differ from their defaults, and functions by their names."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__repr__ = BriefRepr.__repr__  # type: ignore[method-assign]  # `dataclass` writes one only where a class has none

    def __repr__(self) -> str:
        shown: list[Field[Any]] = [each for each in fields(self) if each.repr]  # type: ignore[arg-type]  # a dataclass
        values = ((each, getattr(self, each.name)) for each in shown)
        given = [f"{each.name}={_text(value)}" for each, value in values if not _is_default(each, value)]
        return f"{type(self).__name__}({', '.join(given)})"


def default_of(each: Field[Any]) -> Any:
    """Return the default of a dataclass's field; MISSING if it has none."""
    return each.default if each.default_factory is MISSING else each.default_factory()


def _is_default(each: Field[Any], value: Any) -> bool:
    default = default_of(each)
    return value is default or (type(value) is type(default) and bool(value == default))


def _text(value: Any) -> str:
    if isinstance(value, BaseModel):
        given = (
            f"{name}={getattr(value, name)!r}" for name in type(value).model_fields if name in value.model_fields_set
        )
        return f"{type(value).__name__}({', '.join(given)})"
    return str(getattr(value, "__name__", repr(value))) if callable(value) else repr(value)
