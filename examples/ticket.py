"""The README's pipeline: an agent between two plain functions."""

from pydantic import BaseModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_worker.agents import make_agent_async


class Ticket(BaseModel):
    summary: str = ""
    team: str = ""


def clean(text: str) -> str:
    return " ".join(text.split())


def route(summary: str) -> str:
    return "billing" if "invoice" in summary.lower() else "support"


summarise = make_agent_async("openai:gpt-4o-mini", "Summarise the ticket in one sentence.")

pipeline = Pipeline(
    [
        Step("clean", clean),
        Step("summarise", summarise, config=StepConfig(max_retries=2, timeout_s=30), sink_to="summary"),
        Step("route", route, sink_to="team"),
    ],
    context_model=Ticket,
)
