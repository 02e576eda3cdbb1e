"""Agents: made here, called here. The one door to pydantic-ai."""

from flujo_worker.agents.factory import FlujoAgent, make_agent_async
from flujo_worker.agents.tool import AgentTool

__all__ = ["AgentTool", "FlujoAgent", "make_agent_async"]
