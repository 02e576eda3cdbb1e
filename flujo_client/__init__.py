"""Flujo Worker's client: write pipelines, enqueue them, and read their results.

The names below are loaded when they are first used, so that importing this package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from flujo_client.attempt_info import AttemptInfo, current_attempt
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
    from flujo_client.contract.trace import TraceNode
    from flujo_client.contract.verdict import PluginOutcome, ValidationResult, validator
    from flujo_client.pipeline.cache import CacheBackend, CacheStep, InMemoryCache
    from flujo_client.pipeline.conditional import ConditionalStep
    from flujo_client.pipeline.conversation import HistoryManagement
    from flujo_client.pipeline.human import HumanInTheLoopStep
    from flujo_client.pipeline.loop import LoopStep
    from flujo_client.pipeline.machine import StateMachineStep, Transition
    from flujo_client.pipeline.map import MapStep
    from flujo_client.pipeline.nested import ImportStep
    from flujo_client.pipeline.parallel import BranchFailureStrategy, MergeStrategy, ParallelStep
    from flujo_client.pipeline.pipeline import Pipeline
    from flujo_client.pipeline.router import DynamicParallelRouterStep
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
    "Aborted": "contract.results",
    "AgentCommand": "contract.commands",
    "AgentProcessors": "pipeline.step",
    "AgenticLoopStep": "recipes.agentic_loop",
    "Approval": "contract.approval",
    "AskHumanCommand": "contract.commands",
    "AsyncFlujoClient": "api.client",
    "AsyncRunHandle": "api.handle",
    "AttemptInfo": "attempt_info",
    "BackgroundLaunched": "contract.results",
    "Backoff": "plan.plan",
    "BranchFailureStrategy": "pipeline.parallel",
    "CacheBackend": "pipeline.cache",
    "CacheStep": "pipeline.cache",
    "Candidate": "contract.recipes",
    "Checklist": "contract.recipes",
    "ChecklistItem": "contract.recipes",
    "ConditionalStep": "pipeline.conditional",
    "ConfigManager": "config.manager",
    "ContextState": "contract.context",
    "ConversationTurn": "contract.context",
    "DynamicParallelRouterStep": "pipeline.router",
    "EvaluatorInput": "contract.recipes",
    "ExecutedCommandLog": "contract.commands",
    "Failure": "contract.results",
    "FinishCommand": "contract.commands",
    "Flujo": "api.runner",
    "FlujoClient": "api.client",
    "FlujoError": "errors",
    "HookPayload": "contract.hooks",
    "HistoryManagement": "pipeline.conversation",
    "HumanInTheLoopStep": "pipeline.human",
    "HumanInteraction": "contract.context",
    "ImportStep": "pipeline.nested",
    "InMemoryCache": "pipeline.cache",
    "Limit": "contract.limits",
    "LoopStep": "pipeline.loop",
    "MapStep": "pipeline.map",
    "MergeStrategy": "pipeline.parallel",
    "NonRetryableError": "errors",
    "OnPauseRequestedPayload": "contract.hooks",
    "OnStepFailurePayload": "contract.hooks",
    "ParallelStep": "pipeline.parallel",
    "Paused": "contract.results",
    "Pipeline": "pipeline.pipeline",
    "PipelineContext": "contract.context",
    "PipelineRegistry": "api.registry",
    "PipelineResult": "contract.results",
    "PluginOutcome": "contract.verdict",
    "PostRunPayload": "contract.hooks",
    "PostStepPayload": "contract.hooks",
    "PreRunPayload": "contract.hooks",
    "PreStepPayload": "contract.hooks",
    "ProposerInput": "contract.recipes",
    "Refinement": "contract.results",
    "RefinementCheck": "contract.results",
    "RunAgentCommand": "contract.commands",
    "RunHandle": "api.handle",
    "RunLimit": "contract.admission",
    "RunRequest": "api.bulk",
    "Settings": "config.manager",
    "StateMachineStep": "pipeline.machine",
    "Step": "pipeline.step",
    "StepConfig": "pipeline.step",
    "StepResult": "contract.results",
    "Success": "contract.results",
    "TaskClient": "api.task_client",
    "Throttle": "contract.admission",
    "TraceNode": "contract.trace",
    "Transition": "pipeline.machine",
    "TreeSearchResult": "contract.recipes",
    "TreeSearchStep": "recipes.tree_search",
    "UsageEstimate": "contract.limits",
    "UsageGovernor": "contract.limits",
    "UsageLimitExceededError": "errors",
    "UsageLimits": "contract.limits",
    "ValidationResult": "contract.verdict",
    "current_attempt": "attempt_info",
    "make_agentic_loop_pipeline": "recipes.agentic_loop",
    "make_default_pipeline": "recipes.checklist_pipeline",
    "register_custom_deserializer": "serial",
    "register_custom_serializer": "serial",
    "run_agentic_loop_pipeline": "api.recipes",
    "run_default_pipeline": "api.recipes",
    "safe_deserialize": "contract.deserialize",
    "safe_serialize": "serial",
    "step": "pipeline.step",
    "validator": "contract.verdict",
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
    "Settings",
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
    "UsageEstimate",
    "UsageGovernor",
    "UsageLimitExceededError",
    "UsageLimits",
    "ValidationResult",
    "current_attempt",
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
