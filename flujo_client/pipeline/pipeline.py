"""Pipelines: steps in a row. `a >> b` makes one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from pydantic import BaseModel

from flujo_client.contract.admission import RunLimit
from flujo_client.contract.code import ON_BODY_CHANGE, OnBodyChange
from flujo_client.contract.parameters import ContextT, OutputT
from flujo_client.contract.validation import ValidationReport
from flujo_client.errors import PipelineError
from flujo_client.pipeline.authoring import BriefRepr
from flujo_client.pipeline.background import BackgroundStep
from flujo_client.pipeline.factories import forward
from flujo_client.pipeline.fallback import FallbackStep
from flujo_client.pipeline.step import BACKGROUND, Step, StepConfig, as_a_step, described
from flujo_client.plan.plan import ON_CHANGE, OnChange
from flujo_client.sizes import MAX_CONTAINERS, MAX_STEPS

if TYPE_CHECKING:
    from flujo_client.pipeline.nested import ImportStep

StepOutputT = TypeVar("StepOutputT")


@dataclass(frozen=True, eq=False)
class Pipeline(BriefRepr, Generic[OutputT, ContextT]):
    """Steps that run one after the other, each with the previous one's output.

    Type checkers infer the context from `context_model`, and the output of `from_step` and `a >> b`; otherwise annotate them:
    `Pipeline[Summary, MyContext]`.

    Args:
        steps: the steps, in order.
        name: the name that runs are listed under; the name of the module attribute when None.
        version: your own version, stored with every run.
        context_model: the pydantic model of the context. Without one, context data becomes a `PipelineContext`.
        resources: what agents, processors, plugins and validators get as `resources`: an object, a function or class without arguments
            that makes one, or a reference to either. A context manager, sync or async, is entered for each attempt. Steps in a nested
            pipeline with its own resources get those instead.
        hooks: functions, sync or async, or references to them, that workers call with a run's events. One whose parameter is annotated
            with payloads is called only with these. Steps in a nested pipeline also call that pipeline's hooks.
        on_change: the policy for a run whose code has changed: `carry_on` under the new code if what it has merged and what is open
            allow it, `pin` it to workers with the old code, or `park` it until it is moved. The project's `[runs] on_change` when None.
            The outermost pipeline's applies.
        blueprint: the YAML it was built from, including the files that the blueprint names. It is stored with the runs, so workers
            need no files. A pipeline composed of this one has none.
        on_body_change: the policy when a conversation, in a loop or a state machine, would continue with another function, prompt, tool,
            model or model setting: `warn` records the event `code.changed`, `park` parks the run until a worker with the old code is
            back, `ignore` does neither. The outermost pipeline's applies.
        context_migrations: functions, sync or async, that convert contexts with other fields, by the version or the fingerprint of
            the plan that the run had. Each gets the stored fields by name, and returns those of the present model, or a model. Without
            a matching function the run is parked. The outermost pipeline's apply.
        static_invariants: what must be true after each attempt of every step with an agent, as for `Step`; also in nested pipelines
            that share this context.
        run_limits: limits on the runs of this pipeline that are under way at once, beside those given to `enqueue`. The outermost
            pipeline's apply.
        stream: stream what all steps do and say while they run to readers of the run. The outermost pipeline's applies.
    """

    steps: Sequence[Step]
    name: str | None = None
    version: str = "latest"
    context_model: type[ContextT] | None = None
    resources: Any = field(default=None, repr=False)  # an object may show its password
    hooks: Sequence[Any] = ()
    blueprint: str | None = field(default=None, repr=False)
    on_change: OnChange | None = field(default=None, kw_only=True)
    on_body_change: OnBodyChange = field(default="warn", kw_only=True)
    context_migrations: Mapping[str, Callable[[dict[str, Any]], Any]] = field(
        default_factory=dict, repr=False, kw_only=True
    )
    static_invariants: Sequence[Any] = field(default=(), kw_only=True)
    run_limits: Sequence[RunLimit] = field(default=(), kw_only=True)
    stream: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse steps that are none, where they are written; raises PipelineError."""
        given: Any = self.steps
        if not isinstance(given, list | tuple):
            raise PipelineError(f"`steps` must be a list of steps, got {described(given)}", suggestion=_as_list(given))
        for index, each in enumerate(given):
            if not isinstance(each, Step):
                raise PipelineError(f"steps[{index}] must be a Step, got {described(each)}", suggestion=as_a_step(each))
        for name, choices in (("on_change", (None, *ON_CHANGE)), ("on_body_change", ON_BODY_CHANGE)):
            if (policy := getattr(self, name)) not in choices:
                known = ", ".join(map(repr, filter(None, choices)))
                raise PipelineError(f"`{name}` must be one of {known}, got {str(policy)[:40]!r}")
        _check_migrations(self.context_migrations)
        for index, limit in enumerate(self.run_limits):
            if not isinstance(limit, RunLimit):
                raise PipelineError(f"run_limits[{index}] must be a RunLimit, got {described(limit)}")

    @classmethod
    def from_yaml(cls, source: str | Path, *, allowed: Sequence[str] | None = None) -> Pipeline:
        """Build a pipeline from a blueprint: a file if `source` is a name that ends with `.yaml` or `.yml`, else a text."""
        named = str(source)
        is_named = forward.is_file(named) and "\n" not in named
        return cls.from_yaml_file(named, allowed=allowed) if is_named else cls.from_yaml_text(named, allowed=allowed)

    @classmethod
    def from_yaml_text(
        cls,
        text: str | bytes,
        *,
        name: str | None = None,
        folder: Path | None = None,
        allowed: Sequence[str] | None = None,
    ) -> Pipeline:
        """Build a pipeline from the text of a blueprint (docs/reference/blueprints.md).

        Args:
            text: YAML, at most 1 MiB.
            name: the name of the runs, if the text has none.
            folder: the folder of the files that the text names; without one it cannot name files.
            allowed: import prefixes for references; the project's `allowed_imports` when None.

        Raises:
            BlueprintError: lists every error with its line; nothing was imported from outside the prefixes.
        """
        return forward.load_text(text, name=name, folder=folder, allowed=_allowed(allowed))

    @classmethod
    def from_yaml_file(cls, path: str | Path, *, allowed: Sequence[str] | None = None) -> Pipeline:
        """Build a pipeline of a blueprint's file, which gives it its name if the text does not. Otherwise as `from_yaml_text`."""
        return forward.load_file(path, allowed=_allowed(allowed))

    def validate_graph(
        self, *, raise_on_error: bool = False, include_imports: bool = False, allowed: Sequence[str] | None = None
    ) -> ValidationReport:
        """Find errors and likely mistakes (docs/reference/validation.md).

        Args:
            raise_on_error: raise errors instead of returning them.
            include_imports: include nested pipelines.
            allowed: import prefixes for references; the project's `allowed_imports` when None.

        Raises:
            PipelineError: with `raise_on_error`, lists every error.
        """
        report = forward.validate_pipeline(self, allowed=_allowed(allowed), include_imports=include_imports)
        if raise_on_error and report.errors:
            raise PipelineError(f"{report.target} is not valid:", findings=tuple(map(str, report.errors)))
        return report

    @classmethod
    def from_step(cls, step: Step[StepOutputT], **rest: Any) -> Pipeline[StepOutputT]:
        """Make a pipeline of one step."""
        return Pipeline([step], **rest)

    @classmethod
    def from_canvas(cls, canvas: Any, *, name: str = "canvas") -> Pipeline:
        """Make a pipeline of a Celery canvas, which may be built for each run (docs/how-to/use-in-a-canvas.md).

        Args:
            canvas: a signature, chain, group, chord, map, starmap or chunks, or the JSON of one.
            name: the name that runs are listed under.

        Raises:
            PipelineError: a part has an option that a run cannot keep, or the app does not have its task; names it.
        """
        return forward.from_canvas(canvas, name=name)

    def to_yaml(self) -> str:
        """Write the pipeline as a blueprint, from which `from_yaml_text` builds the same.

        Raises:
            BlueprintError: lists what YAML cannot express, such as a function outside a module.
        """
        return forward.to_text(self)

    def __rshift__(self, other: Step[StepOutputT] | Pipeline[StepOutputT, Any]) -> Pipeline[StepOutputT, ContextT]:
        ours: Any = self
        if not isinstance(other, Pipeline):
            return replace(ours, steps=[*self.steps, other], blueprint=None)
        resources = other.resources if self.resources is None else self.resources
        steps, migrations = [*self.steps, *other.steps], {**other.context_migrations, **self.context_migrations}
        names = ("hooks", "static_invariants", "run_limits")
        given = {name: (*getattr(self, name), *getattr(other, name)) for name in names}
        return replace(ours, steps=steps, blueprint=None, resources=resources, context_migrations=migrations, **given)

    def s(self, value: Any = ..., **options: Any) -> Any:
        """Make a Celery signature that starts a run, for chains, groups, chords and beat (docs/how-to/use-in-a-canvas.md).

        Args:
            value: the run's input; without one, the result of what is before it in the canvas, else None.
            options: those of `BulkOptions`, such as `tenant` and `priority`.
        """
        return forward.signature(self, value, is_immutable=False, **options)

    def si(self, value: Any = ..., **options: Any) -> Any:
        """Make an immutable signature, which does not take the result of what is before it; otherwise as `s`."""
        return forward.signature(self, value, is_immutable=True, **options)

    def as_step(self, name: str, *, inherit_context: bool = True, **options: Any) -> ImportStep:
        """Make a step that runs this pipeline, on the context of the pipeline around it. Takes the options of `ImportStep`."""
        return forward.ImportStep(name, pipeline=self, inherit_context=inherit_context, **options)


def _check_migrations(given: Any) -> None:
    if not isinstance(given, Mapping):
        raise PipelineError(f"`context_migrations` must be a mapping of functions, got {described(given)}")
    for key, function in given.items():
        if not isinstance(key, str) or not callable(function):
            message = f"context_migrations[{str(key)[:40]!r}] must be a function under a version or a fingerprint, got {described(function)}"
            raise PipelineError(message)


def _as_list(given: Any) -> str | None:
    if isinstance(given, str):
        return "to name a pipeline by its module, pass the text to `enqueue`; to read YAML, call Pipeline.from_yaml"
    return "write Pipeline([step]), or a >> b" if isinstance(given, Step) else as_a_step(given)


Body: TypeAlias = Pipeline | Step
"""The values that a container may run: a step is a pipeline of one."""


def steps_of(body: Any) -> Sequence[Step]:
    """Return the steps that a body runs, as they run: one in the background, and one that has a fallback, as the container of it."""
    if isinstance(body, Pipeline):
        return [_unfolded(each) for each in body.steps]
    return [_unfolded(body)] if isinstance(body, Step) else []  # `check` reports anything else


def _unfolded(step: Step) -> Step:
    """Return the step to plan: a step in the background takes its fallback with it."""
    if isinstance(step.config, StepConfig) and step.config.execution_mode == BACKGROUND:
        return BackgroundStep(step.name, task=step)
    return step if step.fallback_step is None else FallbackStep(step.name, primary=step)


def _allowed(given: Sequence[str] | None) -> Sequence[str]:
    if given is not None:
        return given
    from flujo_client.config.manager import ConfigManager

    return ConfigManager().settings().allowed_imports


def model_name(model: type[BaseModel] | None) -> str | None:
    """Write a context model's name, as plans hold it."""
    return None if model is None else f"{model.__module__}:{model.__qualname__}"


def walk(pipeline: Body) -> Iterator[tuple[str, Step]]:
    """Return every step with its path, a container before what it holds, all in declared order; raises PipelineError if it is too deep or large."""
    count = 0
    for path, step, holds_steps in _walk(pipeline, "", 0):
        count += not holds_steps
        if count > MAX_STEPS:
            raise PipelineError(f"the pipeline has more than {MAX_STEPS:,} steps", code="PIPELINE_TOO_LARGE")
        yield path, step


def _walk(body: Body, above: str, depth: int) -> Iterator[tuple[str, Step, bool]]:
    """Return every step with its path, and whether it holds others."""
    if depth > MAX_CONTAINERS:
        message = f"'{above.removesuffix('/')}' is inside more than {MAX_CONTAINERS} containers"
        raise PipelineError(message, code="PIPELINE_TOO_LARGE")
    for step in steps_of(body):
        path = above + step.name
        bodies = step.bodies()
        yield path, step, any(map(steps_of, bodies.values()))
        for key, inner in bodies.items():
            yield from _walk(inner, f"{path}/{key}/", depth + 1)
