"""Agents: made here, called here. The one door to pydantic-ai."""

from flujo_worker.agents.answer import AgentResult
from flujo_worker.agents.base import BaseAgent
from flujo_worker.agents.factory import FlujoAgent, make_agent_async
from flujo_worker.agents.plan_generator import PlanGeneratorAgent
from flujo_worker.agents.templated import TemplatedAgent, make_templated_agent_async
from flujo_worker.agents.tool import AgentTool

__all__ = [
    "AgentResult",
    "AgentTool",
    "BaseAgent",
    "FlujoAgent",
    "PlanGeneratorAgent",
    "TemplatedAgent",
    "make_agent_async",
    "make_templated_agent_async",
]
