"""Flujo Worker's client: write pipelines, enqueue them, and read their results.

The names below are loaded when they are first used, so that importing this package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from flujo_client.attempt_info import AttemptInfo, UnitInfo, current_attempt, current_unit
from flujo_client.errors import FlujoError, NonRetryableError, UsageLimitExceededError

if TYPE_CHECKING:
    from flujo_client.api.bulk import RunRequest
    from flujo_client.api.client import AsyncFlujoClient, FlujoClient
    from flujo_client.api.handle import AsyncRunHandle, RunHandle
    from flujo_client.api.recipes import run_agentic_loop_pipeline, run_default_pipeline
    from flujo_client.api.registry import PipelineRegistry
    from flujo_client.api.runner import Flujo
    from flujo_client.api.task_client import TaskClient
    from flujo_client.config.manager import ConfigManager, Settings
    from flujo_client.contract.admission import RunLimit, Throttle
    from flujo_client.contract.approval import Approval
    from flujo_client.contract.commands import (
        AgentCommand,
        AskHumanCommand,
        ExecutedCommandLog,
        FinishCommand,
        RunAgentCommand,
    )
    from flujo_client.contract.context import ContextState, ConversationTurn, HumanInteraction, PipelineContext
    from flujo_client.contract.deserialize import safe_deserialize
    from flujo_client.contract.hooks import (
        HookPayload,
        OnPauseRequestedPayload,
        OnStepFailurePayload,
        PostRunPayload,
        PostStepPayload,
        PreRunPayload,
        PreStepPayload,
    )
    from flujo_client.contract.limits import Limit, UsageEstimate, UsageGovernor, UsageLimits
    from flujo_client.contract.recipes import (
        Candidate,
        Checklist,
        ChecklistItem,
        EvaluatorInput,
        ProposerInput,
        TreeSearchResult,
    )
    from flujo_client.contract.results import (
        Aborted,
        BackgroundLaunched,
        Failure,
        Paused,
        PipelineResult,
        Refinement,
        RefinementCheck,
        StepResult,
        Success,
    )
    from flujo_client.contract.schedules import ScheduleRecord
    from flujo_client.contract.trace import TraceNode
    from flujo_client.contract.verdict import PluginOutcome, ValidationResult, validator
    from flujo_client.pipeline.cache import CacheBackend, CacheStep, InMemoryCache
    from flujo_client.pipeline.conditional import ConditionalStep
    from flujo_client.pipeline.conversation import HistoryManagement
    from flujo_client.pipeline.event import WaitForEvent
    from flujo_client.pipeline.human import HumanInTheLoopStep
    from flujo_client.pipeline.loop import LoopStep
    from flujo_client.pipeline.machine import StateMachineStep, Transition
    from flujo_client.pipeline.map import MapStep
    from flujo_client.pipeline.nested import ImportStep
    from flujo_client.pipeline.parallel import BranchFailureStrategy, MergeStrategy, ParallelStep
    from flujo_client.pipeline.pipeline import Pipeline
    from flujo_client.pipeline.router import DynamicParallelRouterStep
    from flujo_client.pipeline.schedule import Schedule
    from flujo_client.pipeline.sleep import Sleep
    from flujo_client.pipeline.step import AgentProcessors, Step, StepConfig, step
    from flujo_client.plan.plan import Backoff
    from flujo_client.recipes.agentic_loop import AgenticLoopStep, make_agentic_loop_pipeline
    from flujo_client.recipes.checklist_pipeline import make_default_pipeline
    from flujo_client.recipes.tree_search import TreeSearchStep
    from flujo_client.serial import (
        register_custom_deserializer,
        register_custom_serializer,
        safe_serialize,
    )

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
        "contract.results": "Aborted BackgroundLaunched Failure Paused PipelineResult Refinement RefinementCheck StepResult Success",
        "contract.schedules": "ScheduleRecord",
        "contract.trace": "TraceNode",
        "contract.verdict": "PluginOutcome ValidationResult validator",
        "errors": "FlujoError NonRetryableError UsageLimitExceededError",
        "pipeline.cache": "CacheBackend CacheStep InMemoryCache",
        "pipeline.conditional": "ConditionalStep",
        "pipeline.conversation": "HistoryManagement",
        "pipeline.event": "WaitForEvent",
        "pipeline.human": "HumanInTheLoopStep",
        "pipeline.loop": "LoopStep",
        "pipeline.machine": "StateMachineStep Transition",
        "pipeline.map": "MapStep",
        "pipeline.nested": "ImportStep",
        "pipeline.parallel": "BranchFailureStrategy MergeStrategy ParallelStep",
        "pipeline.pipeline": "Pipeline",
        "pipeline.router": "DynamicParallelRouterStep",
        "pipeline.schedule": "Schedule",
        "pipeline.sleep": "Sleep",
        "pipeline.step": "AgentProcessors Step StepConfig step",
        "plan.plan": "Backoff",
        "recipes.agentic_loop": "AgenticLoopStep make_agentic_loop_pipeline",
        "recipes.checklist_pipeline": "make_default_pipeline",
        "recipes.tree_search": "TreeSearchStep",
        "serial": "register_custom_deserializer register_custom_serializer safe_serialize",
    }.items()
    for name in names.split()
}

__all__ = [
    "Aborted",
    "AgentCommand",
    "AgentProcessors",
    "AgenticLoopStep",
    "Approval",
    "AskHumanCommand",
    "AsyncFlujoClient",
    "AsyncRunHandle",
    "AttemptInfo",
    "BackgroundLaunched",
    "Backoff",
    "BranchFailureStrategy",
    "CacheBackend",
    "CacheStep",
    "Candidate",
    "Checklist",
    "ChecklistItem",
    "ConditionalStep",
    "ConfigManager",
    "ContextState",
    "ConversationTurn",
    "DynamicParallelRouterStep",
    "EvaluatorInput",
    "ExecutedCommandLog",
    "Failure",
    "FinishCommand",
    "Flujo",
    "FlujoClient",
    "FlujoError",
    "HistoryManagement",
    "HookPayload",
    "HumanInTheLoopStep",
    "HumanInteraction",
    "ImportStep",
    "InMemoryCache",
    "Limit",
    "LoopStep",
    "MapStep",
    "MergeStrategy",
    "NonRetryableError",
    "OnPauseRequestedPayload",
    "OnStepFailurePayload",
    "ParallelStep",
    "Paused",
    "Pipeline",
    "PipelineContext",
    "PipelineRegistry",
    "PipelineResult",
    "PluginOutcome",
    "PostRunPayload",
    "PostStepPayload",
    "PreRunPayload",
    "PreStepPayload",
    "ProposerInput",
    "Refinement",
    "RefinementCheck",
    "RunAgentCommand",
    "RunHandle",
    "RunLimit",
    "RunRequest",
    "Schedule",
    "ScheduleRecord",
    "Settings",
    "Sleep",
    "StateMachineStep",
    "Step",
    "StepConfig",
    "StepResult",
    "Success",
    "TaskClient",
    "Throttle",
    "TraceNode",
    "Transition",
    "TreeSearchResult",
    "TreeSearchStep",
    "UnitInfo",
    "UsageEstimate",
    "UsageGovernor",
    "UsageLimitExceededError",
    "UsageLimits",
    "ValidationResult",
    "WaitForEvent",
    "current_attempt",
    "current_unit",
    "make_agentic_loop_pipeline",
    "make_default_pipeline",
    "register_custom_deserializer",
    "register_custom_serializer",
    "run_agentic_loop_pipeline",
    "run_default_pipeline",
    "safe_deserialize",
    "safe_serialize",
    "step",
    "validator",
]


__version__: str


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("flujo-worker")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
