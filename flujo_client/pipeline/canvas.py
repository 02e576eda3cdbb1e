"""Celery canvases: a pipeline as a signature in one, and one as a pipeline (ADR 50).

The shape of a canvas is the plan, and its arguments are the run's context. The shape travels as blueprints do: workers need only the tasks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import count
from typing import Any, Final

from pydantic import BaseModel

from flujo_client.config.manager import ConfigManager
from flujo_client.contract.envelope import TASK_RUN
from flujo_client.errors import PipelineError
from flujo_client.pipeline.celery_task import TaskAgent
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.reference import CANVAS, reference_of
from flujo_client.pipeline.step import Step
from flujo_client.serial import encode

_KEPT: Final = frozenset({"queue", "task_id", "group_id", "group_index", "root_id", "parent_id", "ignore_result"})
_WAYS_OUT: Final = {"link": "append it with `|`", "link_error": "give the pipeline a hook for `post_run`"}


def signature(pipeline: Pipeline, value: Any, *, is_immutable: bool, **options: Any) -> Any:
    """Make the signature of a pipeline; see `Pipeline.s`."""
    from celery.canvas import Signature

    known = import_module("flujo_client.api.options")
    known.refuse_unknown(options, known.BulkOptions, "Pipeline.s")
    keywords = {"pipeline": reference_of(pipeline), **encode(options, path="options")}
    given = () if value is ... else (value,)
    return Signature(TASK_RUN, given, keywords, app=ConfigManager.attached, immutable=is_immutable)


class CanvasCalls(BaseModel):
    """The context of a canvas: the arguments of its tasks, by their places."""

    calls: list[tuple[list[Any], dict[str, Any]]] = []


@dataclass(frozen=True, eq=False)
class CanvasPipeline(Pipeline[Any, CanvasCalls]):
    """A canvas as a pipeline, with the arguments that its runs begin with."""

    arguments: CanvasCalls | None = field(default=None, repr=False, kw_only=True)


@dataclass(frozen=True, eq=False)
class CanvasCall(TaskAgent):
    """A task at a place in a canvas; of the first ones, a run's input other than None is the first argument."""

    place: int = 0
    is_first: bool = False

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        return {"task": self.name, "place": self.place, "ignores_input": self.ignores_input, "is_first": self.is_first}

    def with_arguments(self, context: Any) -> TaskAgent:
        args, kwargs = context.calls[self.place]
        return replace(self, args=args, kwargs=kwargs)

    def run(self, data: Any, context: CanvasCalls) -> Any:  # type: ignore[override]
        """Call the task here, for a unit test."""
        return TaskAgent.run(self.with_arguments(context), data)

    def arguments(self, data: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (tuple(self.args), {**self.kwargs}) if self.is_first and data is None else super().arguments(data)

    def _misfit(self) -> None:
        """Find nothing: its arguments are those of a run."""


def from_canvas(canvas: Any, *, name: str) -> CanvasPipeline:
    """Make a pipeline of a canvas, or of its JSON; see `Pipeline.from_canvas`."""
    from celery import signature

    calls = CanvasCalls()
    shape = _shape(signature(canvas), calls)
    return replace(load_canvas(CANVAS + json.dumps([name, shape])), arguments=calls)


def load_canvas(text: str) -> CanvasPipeline:
    """Build the pipeline of a canvas from the text that travels with its runs; raises PipelineError where a task is missing."""
    name, shape = json.loads(text.removeprefix(CANVAS))
    steps = [*_steps(shape, count(), count(), is_first=True)]
    return CanvasPipeline(steps, name=name, context_model=CanvasCalls, blueprint=text)


def _shape(canvas: Any, calls: CanvasCalls) -> Any:
    """Return the shape of a canvas: a list of what is done in a row, a group, or a task; and collect the arguments of its tasks in order."""
    from celery import canvas as kinds

    for option in canvas.options.keys() - _KEPT:
        if canvas.options[option] is not None:
            way_out = _WAYS_OUT.get(option, "set what `enqueue` has for the whole run, such as `deadline_s`")
            raise PipelineError(f"'{canvas.task}' has `{option}` in the canvas, which a run cannot keep: {way_out}")
    if canvas.task == "celery.chunks":  # its JSON does not contain its class
        canvas = kinds.chunks(**canvas.kwargs, app=canvas.app).group()
    if isinstance(canvas, (kinds._chain, kinds.group, kinds.chord)):  # noqa: SLF001 - `chain` is a function in effect
        shapes: Any = [_shape(each, calls) for each in getattr(canvas.tasks, "tasks", canvas.tasks)]
        shapes = shapes if isinstance(canvas, kinds._chain) else {"group": shapes}  # noqa: SLF001
        return [shapes, _shape(canvas.body, calls)] if isinstance(canvas, kinds.chord) else shapes
    # `map` and `starmap` have a signature among their arguments.
    kwargs = {key: {**each} if isinstance(each, dict) else each for key, each in canvas.kwargs.items()}
    calls.calls.append((list(canvas.args), kwargs))
    return {"task": canvas.task, "immutable": canvas.immutable, "queue": canvas.options.get("queue")}


def _steps(shape: Any, places: Iterator[int], groups: Iterator[int], *, is_first: bool) -> Iterator[Step]:
    from celery import current_app

    if isinstance(shape, list):
        for index, each in enumerate(shape):
            yield from _steps(each, places, groups, is_first=is_first and index == 0)
    elif "group" in shape:
        name = f"group-{next(groups)}"
        branches = [Pipeline(list(_steps(each, places, groups, is_first=is_first))) for each in shape["group"]]
        yield Step.parallel(name, branches, reduce="values")
    else:
        place, name, app = next(places), shape["task"], ConfigManager.attached or current_app
        if name not in app.tasks:
            way_out = "import its module, or add it to `include`"
            problem = f"the Celery app '{app.main}' has no task '{name}'"
            raise PipelineError(problem, suggestion=way_out, code="UNKNOWN_REFERENCE")
        agent = CanvasCall(app.tasks[name], ignores_input=shape["immutable"], place=place, is_first=is_first)
        yield Step(f"{name.rpartition('.')[2]}-{place}", agent, queue=shape["queue"])
