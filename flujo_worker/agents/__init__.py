"""Agents: made here, called here. The one door to pydantic-ai."""

from flujo_worker.agents.factory import FlujoAgent, make_agent_async

__all__ = ["FlujoAgent", "make_agent_async"]
