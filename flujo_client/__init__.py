"""Flujo Worker's client: write pipelines, enqueue them, and read their results.

The names below are loaded when they are first used, so that importing this package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from flujo_client.attempt_info import AttemptInfo as AttemptInfo
from flujo_client.attempt_info import UnitInfo as UnitInfo
from flujo_client.attempt_info import current_attempt as current_attempt
from flujo_client.attempt_info import current_unit as current_unit
from flujo_client.errors import FlujoError as FlujoError
from flujo_client.errors import NonRetryableError as NonRetryableError
from flujo_client.errors import UsageLimitExceededError as UsageLimitExceededError

if TYPE_CHECKING:
    from flujo_client.api.bulk import RunRequest as RunRequest
    from flujo_client.api.client import AsyncFlujoClient as AsyncFlujoClient
    from flujo_client.api.client import FlujoClient as FlujoClient
    from flujo_client.api.handle import AsyncRunHandle as AsyncRunHandle
    from flujo_client.api.handle import RunHandle as RunHandle
    from flujo_client.api.recipes import run_agentic_loop_pipeline as run_agentic_loop_pipeline
    from flujo_client.api.recipes import run_default_pipeline as run_default_pipeline
    from flujo_client.api.registry import PipelineRegistry as PipelineRegistry
    from flujo_client.api.runner import Flujo as Flujo
    from flujo_client.api.task_client import TaskClient as TaskClient
    from flujo_client.config.manager import ConfigManager as ConfigManager
    from flujo_client.config.manager import Settings as Settings
    from flujo_client.contract.admission import RunLimit as RunLimit
    from flujo_client.contract.admission import Throttle as Throttle
    from flujo_client.contract.approval import Approval as Approval
    from flujo_client.contract.commands import AgentCommand as AgentCommand
    from flujo_client.contract.commands import AskHumanCommand as AskHumanCommand
    from flujo_client.contract.commands import ExecutedCommandLog as ExecutedCommandLog
    from flujo_client.contract.commands import FinishCommand as FinishCommand
    from flujo_client.contract.commands import RunAgentCommand as RunAgentCommand
    from flujo_client.contract.context import ContextState as ContextState
    from flujo_client.contract.context import ConversationTurn as ConversationTurn
    from flujo_client.contract.context import HumanInteraction as HumanInteraction
    from flujo_client.contract.context import PipelineContext as PipelineContext
    from flujo_client.contract.deserialize import safe_deserialize as safe_deserialize
    from flujo_client.contract.hooks import HookPayload as HookPayload
    from flujo_client.contract.hooks import OnPauseRequestedPayload as OnPauseRequestedPayload
    from flujo_client.contract.hooks import OnStepFailurePayload as OnStepFailurePayload
    from flujo_client.contract.hooks import PostRunPayload as PostRunPayload
    from flujo_client.contract.hooks import PostStepPayload as PostStepPayload
    from flujo_client.contract.hooks import PreRunPayload as PreRunPayload
    from flujo_client.contract.hooks import PreStepPayload as PreStepPayload
    from flujo_client.contract.limits import Limit as Limit
    from flujo_client.contract.limits import UsageEstimate as UsageEstimate
    from flujo_client.contract.limits import UsageGovernor as UsageGovernor
    from flujo_client.contract.limits import UsageLimits as UsageLimits
    from flujo_client.contract.recipes import Candidate as Candidate
    from flujo_client.contract.recipes import Checklist as Checklist
    from flujo_client.contract.recipes import ChecklistItem as ChecklistItem
    from flujo_client.contract.recipes import EvaluatorInput as EvaluatorInput
    from flujo_client.contract.recipes import ProposerInput as ProposerInput
    from flujo_client.contract.recipes import TreeSearchResult as TreeSearchResult
    from flujo_client.contract.results import Aborted as Aborted
    from flujo_client.contract.results import BackgroundLaunched as BackgroundLaunched
    from flujo_client.contract.results import Chunk as Chunk
    from flujo_client.contract.results import Failure as Failure
    from flujo_client.contract.results import Paused as Paused
    from flujo_client.contract.results import PipelineResult as PipelineResult
    from flujo_client.contract.results import Refinement as Refinement
    from flujo_client.contract.results import RefinementCheck as RefinementCheck
    from flujo_client.contract.results import StepResult as StepResult
    from flujo_client.contract.results import Success as Success
    from flujo_client.contract.schedules import ScheduleRecord as ScheduleRecord
    from flujo_client.contract.trace import TraceNode as TraceNode
    from flujo_client.contract.verdict import PluginOutcome as PluginOutcome
    from flujo_client.contract.verdict import ValidationResult as ValidationResult
    from flujo_client.contract.verdict import validator as validator
    from flujo_client.pipeline.cache import CacheBackend as CacheBackend
    from flujo_client.pipeline.cache import CacheStep as CacheStep
    from flujo_client.pipeline.cache import InMemoryCache as InMemoryCache
    from flujo_client.pipeline.conditional import ConditionalStep as ConditionalStep
    from flujo_client.pipeline.event import WaitForEvent as WaitForEvent
    from flujo_client.pipeline.human import HumanInTheLoopStep as HumanInTheLoopStep
    from flujo_client.pipeline.loop import HistoryManagement as HistoryManagement
    from flujo_client.pipeline.loop import LoopStep as LoopStep
    from flujo_client.pipeline.machine import StateMachineStep as StateMachineStep
    from flujo_client.pipeline.machine import Transition as Transition
    from flujo_client.pipeline.map import MapStep as MapStep
    from flujo_client.pipeline.nested import ImportStep as ImportStep
    from flujo_client.pipeline.parallel import BranchFailureStrategy as BranchFailureStrategy
    from flujo_client.pipeline.parallel import MergeStrategy as MergeStrategy
    from flujo_client.pipeline.parallel import ParallelStep as ParallelStep
    from flujo_client.pipeline.pipeline import Pipeline as Pipeline
    from flujo_client.pipeline.router import DynamicParallelRouterStep as DynamicParallelRouterStep
    from flujo_client.pipeline.schedule import Schedule as Schedule
    from flujo_client.pipeline.sleep import Sleep as Sleep
    from flujo_client.pipeline.sleep import SleepUntil as SleepUntil
    from flujo_client.pipeline.step import AgentProcessors as AgentProcessors
    from flujo_client.pipeline.step import Step as Step
    from flujo_client.pipeline.step import StepConfig as StepConfig
    from flujo_client.pipeline.step import step as step
    from flujo_client.plan.plan import Backoff as Backoff
    from flujo_client.recipes.agentic_loop import AgenticLoopStep as AgenticLoopStep
    from flujo_client.recipes.agentic_loop import make_agentic_loop_pipeline as make_agentic_loop_pipeline
    from flujo_client.recipes.checklist_pipeline import make_default_pipeline as make_default_pipeline
    from flujo_client.recipes.tree_search import TreeSearchStep as TreeSearchStep
    from flujo_client.serial import register_custom_deserializer as register_custom_deserializer
    from flujo_client.serial import register_custom_serializer as register_custom_serializer
    from flujo_client.serial import safe_serialize as safe_serialize

_HOME = {
    name: home
    for home, names in {
        "api.bulk": "RunRequest",
        "api.client": "AsyncFlujoClient FlujoClient",
        "api.handle": "AsyncRunHandle RunHandle",
        "api.recipes": "run_agentic_loop_pipeline run_default_pipeline",
        "api.registry": "PipelineRegistry",
        "api.runner": "Flujo",
        "api.task_client": "TaskClient",
        "attempt_info": "AttemptInfo UnitInfo current_attempt current_unit",
        "config.manager": "ConfigManager Settings",
        "contract.admission": "RunLimit Throttle",
        "contract.approval": "Approval",
        "contract.commands": "AgentCommand AskHumanCommand ExecutedCommandLog FinishCommand RunAgentCommand",
        "contract.context": "ContextState ConversationTurn HumanInteraction PipelineContext",
        "contract.deserialize": "safe_deserialize",
        "contract.hooks": "HookPayload OnPauseRequestedPayload OnStepFailurePayload PostRunPayload PostStepPayload PreRunPayload PreStepPayload",
        "contract.limits": "Limit UsageEstimate UsageGovernor UsageLimits",
        "contract.recipes": "Candidate Checklist ChecklistItem EvaluatorInput ProposerInput TreeSearchResult",
        "contract.results": "Aborted BackgroundLaunched Chunk Failure Paused PipelineResult Refinement RefinementCheck StepResult Success",
        "contract.schedules": "ScheduleRecord",
        "contract.trace": "TraceNode",
        "contract.verdict": "PluginOutcome ValidationResult validator",
        "errors": "FlujoError NonRetryableError UsageLimitExceededError",
        "pipeline.cache": "CacheBackend CacheStep InMemoryCache",
        "pipeline.conditional": "ConditionalStep",
        "pipeline.event": "WaitForEvent",
        "pipeline.human": "HumanInTheLoopStep",
        "pipeline.loop": "HistoryManagement LoopStep",
        "pipeline.machine": "StateMachineStep Transition",
        "pipeline.map": "MapStep",
        "pipeline.nested": "ImportStep",
        "pipeline.parallel": "BranchFailureStrategy MergeStrategy ParallelStep",
        "pipeline.pipeline": "Pipeline",
        "pipeline.router": "DynamicParallelRouterStep",
        "pipeline.schedule": "Schedule",
        "pipeline.sleep": "Sleep SleepUntil",
        "pipeline.step": "AgentProcessors Step StepConfig step",
        "plan.plan": "Backoff",
        "recipes.agentic_loop": "AgenticLoopStep make_agentic_loop_pipeline",
        "recipes.checklist_pipeline": "make_default_pipeline",
        "recipes.tree_search": "TreeSearchStep",
        "serial": "register_custom_deserializer register_custom_serializer safe_serialize",
    }.items()
    for name in names.split()
}

if not TYPE_CHECKING:  # a type checker reads only literal lists: `flujo_worker` would re-export nothing
    __all__ = sorted(_HOME)  # noqa: PLE0605


__version__: str


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, "__version__"})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("flujo-worker")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
