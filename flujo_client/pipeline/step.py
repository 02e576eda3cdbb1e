"""A step: one piece of work, as its author writes it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, Protocol, Self, TypeVar, Unpack, overload

from pydantic import BaseModel, ConfigDict, Field

from flujo_client.contract.limits import Limit, UsageLimits
from flujo_client.contract.parameters import ContextT, OutputT
from flujo_client.contract.processing import ProcessingConfigModel
from flujo_client.contract.suggestions import closest_match
from flujo_client.errors import BlueprintError, PipelineError, StepInvocationError
from flujo_client.pipeline.annotations import call_alone
from flujo_client.pipeline.authoring import BriefRepr, as_agent, refuse_coroutine, refuse_unknown
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.pipeline.factories import Factories, forward
from flujo_client.plan import kinds
from flujo_client.plan.identity import defaults_of
from flujo_client.plan.plan import Backoff

if TYPE_CHECKING:
    from flujo_client.pipeline.factories import MoreStepOptions, StepOptions
    from flujo_client.pipeline.pipeline import Body, Pipeline


NextOutputT = TypeVar("NextOutputT")

BACKGROUND: Final = "background"
"""The execution mode of a step that runs as a separate run."""


class StepConfig(BaseModel):
    """The retries, timeout and model options of a step."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_retries: int = Field(default=1, ge=0, le=1000)
    """The number of attempts after the first; only agent failures are retried."""
    retry_bugs: bool | None = None
    """Whether programming errors (TypeError, AttributeError, NameError, ImportError, SyntaxError) are retried. When None, the first two are
    if an agent, or code after an agent's answer, raised them; a plain function's are not, and the others never."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Timeout of the agent in seconds; the agents' default when None."""
    backoff: Backoff | None = None
    """Waits between attempts; the `[retry]` settings when None."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    max_tokens: int | None = Field(default=None, gt=0)
    """`temperature`, `top_k`, `top_p`, `max_tokens`: model options for agents that take them."""
    preserve_fallback_diagnostics: bool = False
    """Whether the feedback reports why a successful fallback ran."""
    accept_finish_reasons: tuple[Literal["length", "content_filter"], ...] | None = None
    """The finish reasons, `length` and `content_filter`, with which an answer is accepted although the provider stopped it; without them
    such an answer fails its attempt."""
    durable: bool = False
    """Whether each model request and tool call of the step's agents is recorded, so that after a crash or an outage the step continues at the
    call that was in flight."""
    fingerprint: Literal["conversation", "strict"] = "conversation"
    """What a recorded model request must have in common with a new one: the model and the conversation, or everything that is sent."""
    max_turns: int | None = Field(default=None, ge=1, le=10_000)
    """How many requests an agent may make in one attempt; when None, pydantic-ai's limit of 50."""
    history_max_tokens: int | None = Field(default=None, ge=1)
    """About how many tokens of the conversation in an attempt an agent's request sends: its beginning, and the latest turns that fit."""
    blob_threshold_bytes: int | None = Field(default=None, ge=0)
    """The size above which a result of a durable step's call is stored apart; `limits.snapshot_inline_bytes` when None."""
    enforce_idempotency: bool = False
    """Whether a durable step is refused whose tools look like effects and do not declare what a repetition does."""
    stream: bool = False
    """Whether what the step does and says while it runs is streamed to readers of its run; `Pipeline(stream=True)` streams all steps."""
    execution_mode: Literal["sync", "background"] = "sync"
    """With `background`, the step runs as its own run, and the pipeline continues at once with the step's input."""
    expected_cost_usd: float | None = Field(default=None, ge=0, le=1e9)
    expected_tokens: int | None = Field(default=None, ge=0, le=10**15)
    """`expected_cost_usd`, `expected_tokens`: what an attempt under limits reserves; estimated from the model's price, the prompt and
    `max_tokens` when None."""

    def options(self) -> dict[str, Any]:
        """Return the model options that are set."""
        names = ("temperature", "top_k", "top_p", "max_tokens")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True, slots=True)
class AgentProcessors:
    """Functions that change an agent's input and output, in order: objects with `process(data, context)`, or callables."""

    prompt_processors: Sequence[Any] = ()
    """The functions that change the input before the agent is called."""
    output_processors: Sequence[Any] = ()
    """The functions that change the output after AROS has read it, before the final check. If one raises an error, the attempt fails and is
    retried as for the agent's own errors."""


@dataclass(frozen=True, eq=False)
class Step(BriefRepr, Factories, Generic[OutputT]):
    """One agent or function in a pipeline.

    Type checkers infer the output from the function. For an agent or a reference annotate it: `ask: Step[Summary] = Step("ask", agent)`.

    Args:
        name: unique in its pipeline, without `/`, `:`, `#` and control characters.
        agent: an object with `run` (sync or async), a callable, a pydantic-ai agent, a Celery task, or `"module:attribute"`. The `max_retries`,
            `timeout` and `auto_repair` of an agent apply unless the step sets its own.
        config: retries, timeout and model options.
        plugins: objects with `validate(data)`, or `(plugin, priority)` pairs, higher first; a rejection ends the step.
        validators: objects with `validate(output, *, context)`, or callables; a rejection ends the step.
        updates_context: merge the output, a mapping or a model, into the context.
        sink_to: a dotted context path that receives the output.
        queue: a Celery queue for this step.
        meta: your own data, stored with the plan. Its key `processing` sets the argument of that name.
        processing: how the model's output is requested, read and repaired, with the keys of the reference "AROS".
        processors: functions that change the agent's input and output.
        fallback_step: the step that runs with the same input when this one has failed permanently.
        usage_limits: what all attempts, and everything inside the step, may spend together in one run and its child runs.
        limit: how many attempts may run at once under one name, in all workers together; the others wait without a worker.
        input: a template for the agent's input, instead of the previous step's output. A template that is a single tag passes the
            value itself.
        validate_fields: fail the step if the output would go to a field that the context's model does not declare.
        strict_validation: fail the step when a validator rejects the output. With False the output stays, and `metadata_` has
            `validation_passed` and, if that is False, `validation_feedback`.
        static_invariants: what must be true of the output and the context after each attempt: expressions, functions, or references to
            functions. A violation ends the step, and nothing that the attempt changed is stored.

    Raises:
        BlueprintError: `processing` is invalid; names the key.
    """

    spec = kinds.STEP

    name: str
    agent: Any = None
    config: StepConfig = field(default_factory=StepConfig)
    plugins: Sequence[Any] = ()
    validators: Sequence[Any] = ()
    updates_context: bool = False
    sink_to: str | None = None
    queue: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    processing: Mapping[str, Any] | None = None
    processors: AgentProcessors = field(default_factory=AgentProcessors)
    fallback_step: Step | None = None
    usage_limits: UsageLimits | None = None
    input: str | None = None
    validate_fields: bool = False
    strict_validation: bool = True
    static_invariants: Sequence[Any] = ()
    limit: Limit | None = None

    if TYPE_CHECKING:  # the dataclass's own `__init__`, with the output's type inferred

        @overload
        def __init__(
            self: Step[NextOutputT],
            name: str,
            agent: Callable[..., Coroutine[Any, Any, NextOutputT]],
            **options: Unpack[StepOptions],
        ) -> None: ...
        @overload
        def __init__(
            self: Step[NextOutputT], name: str, agent: Callable[..., NextOutputT], **options: Unpack[StepOptions]
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            agent: Any = None,
            config: StepConfig = ...,
            plugins: Sequence[Any] = (),
            validators: Sequence[Any] = (),
            **options: Unpack[MoreStepOptions],
        ) -> None: ...
        def __init__(self, name: str, agent: Any = None, *positional: Any, **options: Any) -> None: ...
    else:

        def __new__(cls, *args: Any, **given: Any) -> Self:
            refuse_unknown(cls, args, given, StepConfig.model_fields)
            return super().__new__(cls)

    def __post_init__(self) -> None:
        refuse_coroutine(self.name, self.agent)
        object.__setattr__(self, "agent", as_agent(self.agent))
        if callable(self.name) or callable(getattr(self.name, "run", None)):
            message = f"the first argument of a step must be its name, got {described(self.name)}"
            raise PipelineError(message, suggestion=as_a_step(self.name))
        if "processing" in self.meta:
            if self.processing is not None:
                raise BlueprintError(f"step '{self.name}': `processing` is given twice, as an argument and in `meta`")
            meta = dict(self.meta)
            object.__setattr__(self, "processing", meta.pop("processing"))
            object.__setattr__(self, "meta", meta)
        self._take_defaults()
        if self.processing is not None:
            try:
                ProcessingConfigModel.read(self.processing)
            except BlueprintError as wrong:
                raise BlueprintError(f"step '{self.name}': {wrong.message}", suggestion=wrong.suggestion) from None

    def _take_defaults(self) -> None:
        """Take from the agent its defaults for steps, where this step sets none."""
        defaults = dict(defaults_of(self.agent))
        if self.processing is None and "processing" in defaults:
            object.__setattr__(self, "processing", defaults["processing"])
        given = getattr(self.config, "model_fields_set", set(StepConfig.model_fields))  # `check` reports anything else
        unset = StepConfig.model_fields.keys() - given
        if known := {name: value for name, value in defaults.items() if name in unset}:
            object.__setattr__(self, "config", StepConfig(**self.config.model_dump(exclude_unset=True), **known))

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        message = f"step '{self.name}' was called like a function"
        way_out = "put it in a pipeline and enqueue that; to test the agent alone, call `step.agent`"
        raise StepInvocationError(message, suggestion=way_out)

    def __rshift__(self, other: Step[NextOutputT] | Pipeline[NextOutputT, ContextT]) -> Pipeline[NextOutputT, ContextT]:
        if isinstance(other, forward.Pipeline):
            return replace(other, steps=[self, *other.steps], blueprint=None)
        steps: Any = [self, other]  # whether the other is one, its pipeline finds out
        return forward.Pipeline(steps)

    @property
    def kind(self) -> str:
        """Return the name of its kind, as plans and traces have it."""
        return self.spec.name

    @property
    def performs(self) -> bool:
        """Return whether it has an agent, which attempts call."""
        return self.spec.performs

    def fallback(self, step: Step) -> Self:
        """Return this step with another one to fall back on, which runs with the same input when this one has failed permanently."""
        return replace(self, fallback_step=step)

    def bodies(self) -> dict[str, Body]:
        """Return what it runs inside itself, by the keys that paths use."""
        return {}

    def rules(self) -> dict[str, Any]:
        """Return what decisions need to know of it, as plain data; `functions` are the roles that have a user function."""
        return {}

    def functions(self) -> dict[str, Any]:
        """Return its user functions, by role; by index below a role that has several."""
        return {}

    def traits(self) -> dict[str, Any]:
        """Return what else makes it another pipeline when it changes, as plain data."""
        return {}

    def findings(self, place: ContextInfo) -> Iterator[str]:  # noqa: ARG002 - what subclasses are asked about
        """Find what is wrong with it at this place, apart from its agent and its bodies."""
        yield from ()

    def place_inside(self, place: ContextInfo) -> ContextInfo:
        """Return what is known of the context inside, for a step that is at `place`."""
        return place

    @classmethod
    def solution(cls, agent: Any, **rest: Any) -> Step:
        """Make a step named `solution`."""
        return cls("solution", agent, **rest)

    @classmethod
    def review(cls, agent: Any, **rest: Any) -> Step:
        """Make a step named `review`."""
        return cls("review", agent, **rest)

    @classmethod
    def validate_step(cls, agent: Any, *, strict: bool = True, **rest: Any) -> Step:
        """Make a step named `validate`, whose validators judge what its agent gives.

        Args:
            agent: the step's.
            strict: fail the step when a validator refuses; otherwise only its `metadata_` record it, as with `strict_validation=False`.
            rest: all else that `Step` takes.
        """
        return cls("validate", agent, strict_validation=strict, **rest)

    @classmethod
    def from_callable(cls, func: Callable[..., Any], name: str | None = None, **rest: Any) -> Step:
        """Make a step that runs `func`, with the function's name if none is given."""
        return cls(name or str(getattr(func, "__name__", type(func).__name__)), func, **rest)

    @classmethod
    def of(cls, task: Any, name: str | None = None, *, spread: bool = False, **rest: Any) -> Step:
        """Make a step of a Celery task, or of its signature such as `resize.s(width=300)`.

        Args:
            task: the task. It gets the step's input, and after it the arguments of the signature, as in a chain.
            name: the step's; the last part of the task's name when None.
            spread: pass a mapping as the task's keyword arguments, and a list or tuple as its arguments by place.
            rest: all else that `Step` takes.
        """
        from flujo_client.pipeline.celery_task import TaskAgent

        agent = TaskAgent.of(task, spread=spread)
        return cls(name or agent.name.rpartition(".")[2], agent, **rest)

    @classmethod
    def from_mapper(cls, mapper: Callable[..., Any], name: str | None = None, **rest: Any) -> Step:
        """Make a step of a function that turns the output of the step before into the input of the next."""
        return cls.from_callable(mapper, name, **rest)

    def use_input(self, key: str) -> Self:
        """Return this step with one entry of its input in the input's place: a key of a mapping, a field of a model.

        Raises:
            PipelineError: the step has an `input` already, or takes none because it is a container.
        """
        if self.input is not None or not self.performs:
            why = "has an `input` already" if self.performs else f"is a {self.kind}, which takes no `input`"
            raise PipelineError(f"use_input({key!r}): step '{self.name}' {why}")
        quoted = key.replace("\\", "\\\\").replace("'", "\\'")
        return replace(self, input=f"{{{{ previous_step['{quoted}'] }}}}")

    async def arun(self, value: Any = None, **named: Any) -> Any:
        """Call the agent once, here, for a unit test: without retries, AROS, processors, plugins and validators.

        Args:
            value: its input.
            named: keyword arguments, such as `context` and `resources`; those it does not accept are left out.

        Raises:
            MissingAgentError: the step has no agent.
        """
        return await call_alone(self, value, named)


def described(given: Any) -> str:
    """Return what was given where a step was expected."""
    name = getattr(given, "__name__", None)
    if isinstance(given, type):
        return f"the class {name}"
    if callable(given) and name:
        return f"the function {name}"
    kind = type(given).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def as_a_step(given: Any) -> str | None:
    """Return how a step is made of what was given; None if it is not known."""
    if hasattr(given, "as_step"):
        return "write `a >> b` to join pipelines, or nest one with pipeline.as_step(name)"
    if callable(getattr(given, "run", None)):
        return 'write Step("name", agent)'
    if callable(given):
        name = str(getattr(given, "__name__", ""))
        has_name = name.isidentifier()
        return f'write Step("{name}", {name}), or @step above it' if has_name else 'write Step("name", function)'
    return "list steps, or join them with >>" if isinstance(given, list | tuple) else None


_NOT_CONFIG = {each.name for each in fields(Step)} - {"name", "agent", "config", "meta", "static_invariants"}


class StepDecorator(Protocol):
    """What `@step(…)` returns: makes a step of a function, and keeps the type of its output."""

    @overload
    def __call__(self, func: Callable[..., Coroutine[Any, Any, NextOutputT]], /) -> Step[NextOutputT]: ...
    @overload
    def __call__(self, func: Callable[..., NextOutputT], /) -> Step[NextOutputT]: ...


@overload
def step(func: Callable[..., Coroutine[Any, Any, NextOutputT]], /) -> Step[NextOutputT]: ...
@overload
def step(func: Callable[..., NextOutputT], /) -> Step[NextOutputT]: ...
@overload
def step(
    *,
    name: str | None = None,
    updates_context: bool = False,
    sink_to: str | None = None,
    validators: Sequence[Any] = (),
    plugins: Sequence[Any] = (),
    queue: str | None = None,
    processing: Mapping[str, Any] | None = None,
    processors: AgentProcessors | None = None,
    fallback_step: Step | None = None,
    usage_limits: UsageLimits | None = None,
    limit: Limit | None = None,
    input: str | None = None,
    validate_fields: bool = False,
    strict_validation: bool = True,
    **config: Any,
) -> StepDecorator: ...
def step(func: Callable[..., Any] | None = None, /, *, name: str | None = None, **rest: Any) -> Any:
    """Make a step of a function: `@step` or `@step(name=…, max_retries=…, timeout_s=…, sink_to=…)`.

    Whatever `Step` does not take by name goes to its `StepConfig`.
    """
    for key in rest:
        if key not in _NOT_CONFIG and key not in StepConfig.model_fields:
            near = closest_match(key, [*_NOT_CONFIG, *StepConfig.model_fields])
            raise TypeError(f"@step has no option '{key}'" + (f": write @step({near}=…)" if near else ""))
    own = {key: rest.pop(key) for key in _NOT_CONFIG if key in rest}
    config = StepConfig(**rest)

    def make(target: Callable[..., Any]) -> Step:
        return Step.from_callable(target, name, config=config, **own)

    return make(func) if func is not None else make
