"""Agents: made here, called here. The one door to pydantic-ai."""

from flujo_worker.agents.answer import AgentResult
from flujo_worker.agents.factory import FlujoAgent, make_agent_async
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
from flujo_worker.agents.templated import BaseAgent, PlanGeneratorAgent, TemplatedAgent, make_templated_agent_async
from flujo_worker.agents.tool import AgentTool

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
