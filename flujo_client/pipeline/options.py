"""The options of containers, for type checkers: what `Step.loop_until` and its like take by name. A test compares them with the classes.

The classes say what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from flujo_client.contract.limit import Limit
    from flujo_client.contract.limits import UsageLimits
    from flujo_client.pipeline.conversation import HistoryManagement
    from flujo_client.pipeline.parallel import BranchFailureStrategy, MergeStrategy
    from flujo_client.pipeline.pipeline import Body
    from flujo_client.pipeline.step import AgentProcessors, Step, StepConfig


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
    """The options of all containers."""

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


class FanOutOptions(ContainerOptions, total=False):
    """The options of all fan-outs."""

    merge_strategy: MergeStrategy | str | Callable[..., Any]
    on_branch_failure: BranchFailureStrategy | str
    strategy: BranchFailureStrategy | str
    context_include_keys: Sequence[str] | None
    max_concurrency: int | None


class ParallelOptions(FanOutOptions, total=False):
    """The options of a `ParallelStep` apart from its branches."""

    field_mapping: Mapping[str, Sequence[str]] | None
    ignore_branch_names: bool
    reduce: str | Callable[..., Any] | None


class ConditionalOptions(ContainerOptions, total=False):
    """The options of a `ConditionalStep` apart from its condition and its branches."""

    condition: Callable[..., Any]
    branch_input_mapper: Callable[..., Any] | None
    branch_output_mapper: Callable[..., Any] | None
