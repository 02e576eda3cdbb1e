"""Agents: made here, called here. The one door to pydantic-ai."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flujo_worker.agents.answer import AgentResult
from flujo_worker.agents.factory import FlujoAgent, make_agent_async
from flujo_worker.agents.templated import BaseAgent, PlanGeneratorAgent, TemplatedAgent, make_templated_agent_async
from flujo_worker.agents.tool import AgentTool

if TYPE_CHECKING:
    from flujo_worker.agents.recipes import (
        CANNOT_REPAIR,
        ImprovementReport,
        ImprovementSuggestion,
        make_reflection_agent,
        make_repair_agent,
        make_review_agent,
        make_self_improvement_agent,
        make_solution_agent,
        make_validator_agent,
    )

__all__ = [
    "CANNOT_REPAIR",
    "AgentResult",
    "AgentTool",
    "BaseAgent",
    "FlujoAgent",
    "ImprovementReport",
    "ImprovementSuggestion",
    "PlanGeneratorAgent",
    "TemplatedAgent",
    "make_agent_async",
    "make_reflection_agent",
    "make_repair_agent",
    "make_review_agent",
    "make_self_improvement_agent",
    "make_solution_agent",
    "make_templated_agent_async",
    "make_validator_agent",
]


def __getattr__(name: str) -> Any:
    """Import the recipes when one of them is first used."""
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module("flujo_worker.agents.recipes"), name)
