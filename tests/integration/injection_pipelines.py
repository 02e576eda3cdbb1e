"""The agents of `test_context_injection`, in a module of their own, because the worker imports them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_worker.agents.factory import make_agent_async

ONCE = StepConfig(max_retries=0)


class MyContext(BaseModel):
    count: int = 0
    seen: list[str] = []


def repeating_model() -> FunctionModel:
    """A model that answers with all it was told."""
    return FunctionModel(lambda messages, _: ModelResponse([TextPart(str(messages[-1].parts[-1].content))]))


def broken() -> FunctionModel:
    def respond(*_: Any) -> ModelResponse:
        raise ValueError("Internal error")

    return FunctionModel(respond)


class Explicit:
    """As the seed writes it: a plain method with a keyword-only context."""

    def run(self, data: str, *, context: MyContext) -> str:
        context.count += 1
        context.seen.append(type(context).__name__)
        return f"{data} {context.count}"


class Keywords:
    def run(self, data: str, **kwargs: Any) -> list[str]:
        if "context" in kwargs:
            kwargs["context"].seen.append(data)
        return sorted(kwargs)


class Unused:
    """A stateless agent that never heard of a context."""

    async def run(self, data: str) -> str:
        return data


class Raising:
    async def run(self, data: str) -> str:
        raise ValueError("Internal error")


class Later:
    def run(self, data: Any, *, context: MyContext) -> tuple[int, list[str]]:
        return context.count, context.seen


stateless = Pipeline([Step("stateless", make_agent_async(repeating_model, "be brief")), Step("plain", Unused())])
explicit = Step("explicit", Explicit()) >> Step("again", Explicit()) >> Step("later", Later())
keywords = Pipeline([Step("keywords", Keywords(), config=StepConfig(temperature=0.5))])
raising = Pipeline([Step("raising", Raising(), config=ONCE)])
raising_factory = Pipeline([Step("raising", make_agent_async(broken), config=ONCE)])
