"""The pipeline that meets a provider's ordinary week (`tests/bench/provider_week.py`): five agents, one after another."""

from typing import Any

from pydantic import BaseModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_worker.agents import make_agent_async

STEPS = ("sort", "extract", "look_up", "answer", "check")


class Verdict(BaseModel):
    """What the last agent returns: a broken answer is seen there."""

    is_polite: bool


def _model() -> Any:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel("week", provider=OpenAIProvider(openai_client=AsyncOpenAI(max_retries=0)))


def _step(name: str, output_type: type) -> Step:
    config = StepConfig(max_retries=6, timeout_s=20)
    return Step(name, make_agent_async(_model, f"{name} the mail.", output_type=output_type), config=config)


mails = Pipeline([_step(name, Verdict if name == "check" else str) for name in STEPS], name="mails")
