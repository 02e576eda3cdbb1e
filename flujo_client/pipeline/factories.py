"""The short ways to make containers: `Step.loop_until`, `Step.parallel` and so on, and classes that are imported when they are first used.

Each takes the options of the class it makes an instance of, which says what they mean. A test compares the options here with the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

from flujo_client.errors import PipelineError

if TYPE_CHECKING:
    from flujo_client.contract.limits import Limit, UsageLimits
    from flujo_client.contract.validation import ValidationReport
    from flujo_client.pipeline.cache import CacheBackend, CacheStep
    from flujo_client.pipeline.conditional import ConditionalStep
    from flujo_client.pipeline.human import HumanInTheLoopStep
    from flujo_client.pipeline.loop import HistoryManagement, LoopStep
    from flujo_client.pipeline.map import MapStep
    from flujo_client.pipeline.nested import ImportStep
    from flujo_client.pipeline.parallel import BranchFailureStrategy, Gatherer, GatherStep, MergeStrategy, ParallelStep
    from flujo_client.pipeline.pipeline import Body, Pipeline
    from flujo_client.pipeline.router import DynamicParallelRouterStep
    from flujo_client.pipeline.step import AgentProcessors, Step, StepConfig
    from flujo_client.recipes.agentic_loop import AgenticLoopStep
    from flujo_client.recipes.tree_search import TreeSearchStep


_NAMES: Final = {
    "blueprint": "load_file load_text to_text",
    "blueprint.validate": "validate_pipeline",
    "pipeline.canvas": "from_canvas signature",
    "pipeline.parallel": "Gatherer GatherStep",
    "pipeline.reference": "is_file",
    "recipes.refine": "refine_until",
}
"""The names that the package itself does not have, by their modules."""
_HOME: Final = {name: f"flujo_client.{module}" for module, names in _NAMES.items() for name in names.split()}


class Forward:
    """Classes and functions that methods of `Step` and `Pipeline` use, and that are made of these, each imported when it is first used."""

    from_canvas: Callable[..., Pipeline]
    is_file: Callable[[str], bool]
    load_file: Callable[..., Pipeline]
    load_text: Callable[..., Pipeline]
    refine_until: Callable[..., LoopStep]
    signature: Callable[..., Any]
    to_text: Callable[[Pipeline], str]
    validate_pipeline: Callable[..., ValidationReport]
    AgenticLoopStep: type[AgenticLoopStep]
    CacheStep: type[CacheStep]
    ConditionalStep: Callable[..., ConditionalStep]
    DynamicParallelRouterStep: type[DynamicParallelRouterStep]
    Gatherer: type[Gatherer]
    GatherStep: type[GatherStep]
    HumanInTheLoopStep: type[HumanInTheLoopStep]
    ImportStep: type[ImportStep]
    LoopStep: Callable[..., LoopStep]
    MapStep: type[MapStep]
    ParallelStep: Callable[..., ParallelStep]
    Pipeline: type[Pipeline]
    Step: Callable[..., Step]
    StepConfig: type[StepConfig]
    TreeSearchStep: type[TreeSearchStep]

    def __getattr__(self, name: str) -> Any:
        setattr(self, name, getattr(import_module(_HOME.get(name, "flujo_client")), name))
        return self.__dict__[name]


forward = Forward()

_FINGERPRINTS: Final = {"strict": "strict", "compat": "conversation"}


class MoreStepOptions(TypedDict, total=False):
    """The options of a `Step` that are given by name."""

    updates_context: bool
    sink_to: str | None
    queue: str | None
    meta: dict[str, Any]
    processing: Mapping[str, Any] | None
    processors: AgentProcessors
    fallback_step: Step | None
    usage_limits: UsageLimits | None
    input: str | None
    validate_fields: bool
    strict_validation: bool
    static_invariants: Sequence[Any]
    limit: Limit | None


class StepOptions(MoreStepOptions, total=False):
    """The options of a `Step` apart from its name and agent."""

    config: StepConfig
    plugins: Sequence[Any]
    validators: Sequence[Any]


class ContainerOptions(TypedDict, total=False):
    config: StepConfig
    meta: dict[str, Any]
    fallback_step: Step | None
    usage_limits: UsageLimits | None


class LoopOptions(ContainerOptions, total=False):
    """The options of a `LoopStep` apart from its body, its condition and its bound, whose aliases are here."""

    body: Body
    max_iterations: int
    initial_input_to_loop_body_mapper: Callable[..., Any] | None
    iteration_input_mapper: Callable[..., Any] | None
    loop_output_mapper: Callable[..., Any] | None
    fails_at_max: bool
    conversation: bool
    history_management: HistoryManagement | None
    history_template: str | None
    ai_turn_source: str
    user_turn_sources: Sequence[str]
    named_steps: Sequence[str]


class ParallelOptions(ContainerOptions, total=False):
    """The options of a `ParallelStep` apart from its branches."""

    merge_strategy: MergeStrategy | str | Callable[..., Any]
    on_branch_failure: BranchFailureStrategy | str
    strategy: BranchFailureStrategy | str
    context_include_keys: Sequence[str] | None
    max_concurrency: int | None
    field_mapping: Mapping[str, Sequence[str]] | None
    ignore_branch_names: bool
    reduce: str | Callable[..., Any] | None


class ConditionalOptions(ContainerOptions, total=False):
    """The options of a `ConditionalStep` apart from its condition and its branches."""

    condition: Callable[..., Any]
    branch_input_mapper: Callable[..., Any] | None
    branch_output_mapper: Callable[..., Any] | None


def _given(**options: Any) -> dict[str, Any]:
    """Return the options that are given; the class has defaults for the others, or requires them."""
    return {name: value for name, value in options.items() if value is not None}


class Factories:
    """What `Step` inherits them from."""

    @staticmethod
    def loop_until(
        name: str,
        loop_body_pipeline: Body | None = None,
        exit_condition_callable: Callable[..., Any] | None = None,
        max_loops: int | None = None,
        **options: Unpack[LoopOptions],
    ) -> LoopStep:
        """Make a `LoopStep`, which repeats a pipeline until a condition holds, at most 5 times by default.

        Raises:
            TypeError: there is no body or no condition, or one is passed under both its names.
        """
        given = _given(
            loop_body_pipeline=loop_body_pipeline, exit_condition_callable=exit_condition_callable, max_loops=max_loops
        )
        return forward.LoopStep(name, **given, **options)

    @staticmethod
    def map_over(name: str, pipeline_to_run: Body, *, iterable_input: str, **options: Any) -> MapStep:
        """Make a `MapStep`."""
        return forward.MapStep(name, pipeline_to_run=pipeline_to_run, iterable_input=iterable_input, **options)

    @staticmethod
    def tree_search(name: str, proposer: Any, evaluator: Any, **options: Any) -> TreeSearchStep:
        """Make a `TreeSearchStep`."""
        return forward.TreeSearchStep(name, proposer=proposer, evaluator=evaluator, **options)

    @staticmethod
    def parallel(
        name: str, branches: Mapping[str, Body] | Sequence[Body], **options: Unpack[ParallelOptions]
    ) -> ParallelStep:
        """Make a `ParallelStep`, which runs branches side by side and continues when all have ended; a list is named by its indices."""
        return forward.ParallelStep(name, branches=branches, **options)

    @staticmethod
    def branch_on(
        name: str,
        condition_callable: Callable[..., Any] | None = None,
        branches: Mapping[Any, Body] | None = None,
        default_branch_pipeline: Body | None = None,
        **options: Unpack[ConditionalOptions],
    ) -> ConditionalStep:
        """Make a `ConditionalStep`, which runs the branch that a condition's answer names. Raises TypeError without a condition or branches."""
        given = _given(
            condition_callable=condition_callable, branches=branches, default_branch_pipeline=default_branch_pipeline
        )
        return forward.ConditionalStep(name, **given, **options)

    @staticmethod
    def dynamic_parallel_branch(
        name: str, router_agent: Any, branches: Mapping[str, Body] | Sequence[Body], **options: Any
    ) -> DynamicParallelRouterStep:
        """Make a `DynamicParallelRouterStep`."""
        return forward.DynamicParallelRouterStep(name, router_agent=router_agent, branches=branches, **options)

    @staticmethod
    def refine_until(
        name: str,
        generator_pipeline: Body,
        critic_pipeline: Body,
        max_refinements: int = 5,
        feedback_mapper: Callable[..., Any] | None = None,
    ) -> LoopStep:
        """Make a loop of a generator and a critic, which answers a `RefinementCheck`, until that says `is_complete`.

        Its output is the last artifact if it is complete, else the last check.

        Args:
            name: the loop's.
            generator_pipeline: makes the artifact; its first input is the loop's own.
            critic_pipeline: gets the artifact.
            max_refinements: iterations at most.
            feedback_mapper: `(original_input, check)`, gives the generator's next input; without one that is a mapping of
                `original_input` and `feedback`.
        """
        return forward.refine_until(name, generator_pipeline, critic_pipeline, max_refinements, feedback_mapper)

    @staticmethod
    def agentic_loop(name: str, planner: Any, registry: Mapping[str, Any], **options: Any) -> AgenticLoopStep:
        """Make an `AgenticLoopStep`."""
        return forward.AgenticLoopStep(name, planner=planner, registry=registry, **options)

    @staticmethod
    def human_in_the_loop(name: str, message_for_user: Any = None, **options: Any) -> HumanInTheLoopStep:
        """Make a `HumanInTheLoopStep`."""
        return forward.HumanInTheLoopStep(name, message_for_user=message_for_user, **options)

    @staticmethod
    def cached(step: Step, cache_backend: CacheBackend | str | None = None, **options: Any) -> CacheStep:
        """Make a `CacheStep` around a step, with its name."""
        return forward.CacheStep(wrapped_step=step, cache_backend=cache_backend, **options)

    @staticmethod
    def granular(
        name: str,
        agent: Any,
        *,
        max_turns: int = 20,
        history_max_tokens: int | None = 128_000,
        blob_threshold_bytes: int = 20_000,
        enforce_idempotency: bool = False,
        resume_fingerprint_mode: Literal["strict", "compat"] = "strict",
        **options: Any,
    ) -> Step:
        """Make a durable step, whose agent continues at the call that was in flight.

        Args:
            name: the step's.
            agent: asks a model.
            max_turns: requests at most in one attempt.
            history_max_tokens: about how many tokens of the conversation a request sends; all if None.
            blob_threshold_bytes: the size above which results of calls are stored apart.
            enforce_idempotency: refuse tools that look like effects and do not declare what a repetition does.
            resume_fingerprint_mode: `strict`: a recorded request must have been the same in all that is sent; `compat`: in its conversation.
            options: all else that `Step` takes.
        """
        mode = resume_fingerprint_mode
        if mode not in _FINGERPRINTS:
            raise PipelineError(f"`resume_fingerprint_mode` of step '{name}' must be strict or compat, got {mode!r}")
        given = {"max_turns": max_turns, "history_max_tokens": history_max_tokens}
        given |= {"blob_threshold_bytes": blob_threshold_bytes, "enforce_idempotency": enforce_idempotency}
        own: StepConfig = options.pop("config", None) or forward.StepConfig()
        values = {**own.model_dump(exclude_unset=True), **given, "durable": True, "fingerprint": _FINGERPRINTS[mode]}
        return forward.Step(name, agent, config=forward.StepConfig(**values), **options)

    @staticmethod
    def gather(name: str, wait_for: Sequence[str], **options: Any) -> Step:
        """Make a step that collects the outputs of the named steps from the context's `step_outputs` into a mapping."""
        return forward.GatherStep(name, forward.Gatherer(tuple(wait_for)), **options)
