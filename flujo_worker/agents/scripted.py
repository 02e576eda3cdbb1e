"""A model without a provider: its answers are computed from what it is asked. For demos and tests, offline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model
    from pydantic_ai.models.function import AgentInfo


def scripted_model(answer: Callable[[str], str | BaseModel], *, name: str = "scripted") -> Model[Any]:
    """Make a model that answers with `answer(prompt)`: text, or a value of the agent's output type.

    Args:
        answer: gets the user's prompt as text.
        name: the model's name in traces.
    """
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        reply = answer(last_prompt(messages))
        if isinstance(reply, BaseModel) and info.output_tools:
            return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, reply.model_dump(mode="json"))])
        return ModelResponse(parts=[TextPart(reply.model_dump_json() if isinstance(reply, BaseModel) else reply)])

    return FunctionModel(respond, model_name=name)


def last_prompt(messages: list[ModelMessage]) -> str:
    """Return the last text that a user has sent."""
    prompts = [part.content for message in messages for part in message.parts if part.part_kind == "user-prompt"]
    return str(prompts[-1]) if prompts else ""
