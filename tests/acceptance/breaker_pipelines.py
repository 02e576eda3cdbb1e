"""Pipelines whose models stand behind HTTP, each model for one test; what its client would try again by itself is turned off."""

from __future__ import annotations

from typing import Any

from flujo_client import Pipeline, Step, StepConfig
from flujo_worker.agents import make_agent_async

ROOMY = StepConfig(max_retries=20)


def talk(model: str, name: str = "talk") -> Step:
    """A step that asks this model; no one is asked for the client before a worker needs it."""

    def make() -> Any:
        from openai import AsyncOpenAI
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        return OpenAIChatModel(model, provider=OpenAIProvider(openai_client=AsyncOpenAI(max_retries=0)))

    return Step(name, make_agent_async(make, "Answer."), config=ROOMY)


shared = Pipeline([talk("shared-model")], name="shared")
fan = Pipeline([Step.parallel("all", {f"b{n}": talk("fan-model") for n in range(4)})], name="fan")
refused = Pipeline([talk("refused-model")], name="refused")
closed = Pipeline([talk("closed-model")], name="closed")
disabled = Pipeline([talk("disabled-model")], name="disabled")
calm = Pipeline([talk("calm-model")], name="calm")
busy = Pipeline([talk("busy-model")], name="busy")
plain = Pipeline([Step("upper", str.upper), Step("lower", str.lower)], name="plain")
