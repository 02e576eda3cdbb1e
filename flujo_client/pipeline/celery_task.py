"""Celery tasks as agents of steps: their arguments, their defaults for the step, and what of a task a step cannot keep. It must not import Celery."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from flujo_client.errors import NonRetryableError
from flujo_client.pipeline.annotations import declared_types, type_text
from flujo_client.serial import refused_type

if TYPE_CHECKING:
    from flujo_client.pipeline.step import Step

NO_TIME_LIMIT_S: Final = 30 * 86_400.0
"""The timeout of a task without a `time_limit`: Celery sets none, a step has one."""
_PYTHON_ONLY: Final = frozenset({"pickle", "yaml"})
"""Serializers by which a task may return what no other program can read."""
_KEPT: Final = frozenset({"task_id", "ignore_result"})
"""The options of a signature that mean nothing for a step."""


@dataclass(frozen=True, eq=False)
class TaskAgent:
    """A Celery task as the agent of a step."""

    task: Any
    args: Sequence[Any] = ()
    """Arguments after the step's input, as in `task.s(…)`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    ignores_input: bool = False
    """Whether the task gets `args` and `kwargs` alone, as with `task.si(…)`."""
    spread: bool = False
    """Whether a mapping is the task's keyword arguments, and a list or tuple its arguments by place."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else was set on its signature."""

    @classmethod
    def of(cls, given: Any, *, spread: bool = False) -> TaskAgent:
        """Make the agent of a task, or of its signature."""
        if not isinstance(given, dict):
            return cls(given, spread=spread)
        signature: Any = given
        options = {name: each for name, each in signature.options.items() if each and name not in _KEPT}
        canvas = signature.get("subtask_type")
        options |= {canvas: True} if canvas else {}
        args, kwargs = tuple(signature.args or ()), dict(signature.kwargs or {})
        return cls(signature if canvas else signature.type, args, kwargs, bool(signature.immutable), spread, options)

    @property
    def name(self) -> str:
        return str(self.task.name)

    @property
    def __flujo_task__(self) -> Any:
        return self.task

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        given = {"args": list(self.args), "kwargs": dict(self.kwargs), "ignores_input": self.ignores_input}
        return {"task": self.name} | {name: each for name, each in (given | {"spread": self.spread}).items() if each}

    @property
    def __flujo_defaults__(self) -> dict[str, Any]:
        """Return the defaults of its step. There are no retries: a task is retried only when it requests that itself."""
        return {"max_retries": 0, "timeout_s": float(getattr(self.task, "time_limit", None) or NO_TIME_LIMIT_S)}

    def with_arguments(self, _: Any) -> TaskAgent:
        """Return the agent with the arguments that the run's context has for it."""
        return self

    def run(self, data: Any) -> Any:
        """Call the task here, for a unit test, as `task(…)` does. In an attempt, a worker calls it."""
        args, kwargs = self.arguments(data)
        return self.task(*args, **kwargs)

    def arguments(self, data: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what the task is called with, for a step's input; raises NonRetryableError if that is to be spread and cannot be."""
        if self.ignores_input:
            return tuple(self.args), dict(self.kwargs)
        if not self.spread:
            return (data, *self.args), dict(self.kwargs)
        if isinstance(data, Mapping):
            return tuple(self.args), {**self.kwargs, **data}
        if isinstance(data, list | tuple):
            return (*data, *self.args), dict(self.kwargs)
        what = f"the arguments of task '{self.name}' are to be spread from its input, which is a {type(data).__name__}"
        raise NonRetryableError(what, suggestion="pass a mapping or a list, or leave `spread` out")

    def __flujo_findings__(self, step: Step) -> Iterator[str]:
        """Find what of the task this step cannot keep, each with the way out."""
        task, what = self.task, f"its task '{self.task.name}'"
        if self.options:
            yield f"{what} is given as a signature with {', '.join(map(str, self.options))}, which a step cannot keep: use `queue`, `limit` and the steps after it"
            return
        function = inspect.unwrap(task.run)
        if task.rate_limit and step.limit is None:
            yield f"{what} has rate_limit={task.rate_limit!r}, which each worker would count alone: give the step `limit=Limit(…)`, which all workers count together"
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            yield f"{what} is a generator, whose values cannot be stored: return a list"
        if inspect.iscoroutinefunction(function) and not _calls_itself(task):
            yield f"{what} is async, which Celery does not run: give the step an async function"
        yield from self._output_findings(what)
        if not self.spread and (wrong := self._misfit()):
            yield f"{what} cannot be called with the output of the step before: {wrong}; pass the others as {task.__name__}.s(…), or spread a mapping: Step.of({task.__name__}, spread=True)"

    def _output_findings(self, what: str) -> Iterator[str]:
        gives = declared_types(self.task.run).gives
        serializers = {self.task.serializer, self.task.app.conf.result_serializer} & _PYTHON_ONLY
        if (refused := refused_type(gives)) is not None:
            yield f"{what} returns {type_text(gives)}, which cannot be stored: {refused.message}"
        elif gives is Any and serializers:
            yield f"{what} has the serializer {min(serializers)}, by which it may return what cannot be stored: annotate what it returns"

    def _misfit(self) -> str | None:
        """Return why the task's function does not take its arguments; None if it does."""
        args, kwargs = self.arguments(None)
        try:
            inspect.signature(self.task.run).bind(*args, **kwargs)
        except ValueError:  # compiled functions hide their parameters
            return None
        except TypeError as wrong:
            return str(wrong)
        return None


def _calls_itself(task: Any) -> bool:
    """Return whether a class of the user's has its own `__call__`, which may run a coroutine."""
    own = (each for each in task.__class__.__mro__ if not each.__module__.startswith("celery."))
    return any("__call__" in vars(each) for each in own)
