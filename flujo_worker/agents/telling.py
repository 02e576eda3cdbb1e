"""What is told of a request to a model: who is asked, the system prompt, the prompts, the output's schema (requirements §2.9).

A capability, one for each run, made where prompts are told at all. It must not change a request. In: what the library is about to send.
Out: events, cut short and without secrets.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import orjson
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelRequest, SystemPromptPart

from flujo_client.attempt import current_attempt
from flujo_client.redact import PREVIEW, preview, redact_tree
from flujo_client.serial import safe_serialize
from flujo_worker.observe.log import tell

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from pydantic_ai import RunContext
    from pydantic_ai.messages import ModelRequestPart, ModelResponse
    from pydantic_ai.models import ModelRequestContext, ModelRequestParameters

MOST: Final = {"preview": PREVIEW, "full": 65_536}
"""Characters of each text, by the setting `log.prompts`."""

_most: ContextVar[int] = ContextVar("most", default=0)


@contextmanager
def telling_prompts(mode: str) -> Iterator[None]:
    """Tell of every request inside, so much of each text as `log.prompts` says."""
    token = _most.set(MOST.get(mode, 0))
    try:
        yield
    finally:
        _most.reset(token)


def told(shown: str) -> list[Any]:
    """Give the capabilities of a run that is told of: one, or none where nothing is told."""
    return [_Telling(shown, _most.get())] if _most.get() else []


def tell_variables(template: str, variables: dict[str, Any]) -> None:
    """Tell which variables a system prompt was rendered with."""
    if most := _most.get():
        values = {name: preview(text_of(hidden(value, name)), most) for name, value in variables.items()}
        tell("agent.system.vars", "debug", template=template, variables=values)


def text_of(value: Any) -> str:
    """Write what a model is shown of a value: a text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return orjson.dumps(safe_serialize(value), option=orjson.OPT_INDENT_2).decode()


def hidden(value: Any, name: str = "") -> Any:
    """A value without what its fields' names tell to hide: in a text they could not be told any more."""
    return redact_tree(value if isinstance(value, str) else safe_serialize(value), name)


class _Telling(AbstractCapability[Any]):
    """Tells of a run's requests, each part of the conversation once."""

    def __init__(self, shown: str, most: int) -> None:
        self._shown, self._most = shown, most
        self._told, self._schema = 0, ""

    async def wrap_model_request(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - the library passes it by name
        *,
        request_context: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        """Tell, then ask."""
        self._tell(request_context)
        return await handler(request_context)

    def _tell(self, asked: ModelRequestContext) -> None:
        news = [message for message in asked.messages[self._told :] if isinstance(message, ModelRequest)]
        if self._told == 0:
            self._tell_system(asked, news)
            self._tell_prompt(self._shown)
        else:
            for text in (_said(part) for message in news for part in message.parts):
                self._tell_prompt(text)
        self._told = len(asked.messages)
        self._tell_schema(asked.model_request_parameters)

    def _tell_system(self, asked: ModelRequestContext, news: list[ModelRequest]) -> None:
        system, info = _system(news), current_attempt()
        tell(
            "agent.system",
            "debug",
            model_id=asked.model.model_name,
            attempt=info and info.number,
            system_prompt_preview=preview(system, self._most) if system else None,
        )

    def _tell_prompt(self, text: str) -> None:
        tell("agent.prompt", "debug", prompt_preview=preview(text, self._most))

    def _tell_schema(self, asked: ModelRequestParameters) -> None:
        forms = [asked.output_object] if asked.output_object is not None else []
        tools = [{"name": tool.name, "schema": tool.parameters_json_schema} for tool in asked.output_tools]
        schemas = [{"name": form.name, "schema": form.json_schema} for form in forms] or tools
        schema = text_of(schemas) if schemas else ""
        if schema and schema != self._schema:
            tell("agent.schema", "debug", mode=asked.output_mode, schema_preview=preview(schema, self._most))
        self._schema = schema


def _system(messages: list[ModelRequest]) -> str:
    parts = [part.content for message in messages for part in message.parts if isinstance(part, SystemPromptPart)]
    return "\n\n".join([*parts, *(message.instructions for message in messages if message.instructions)])


def _said(part: ModelRequestPart) -> str:
    return text_of(hidden(getattr(part, "content", part)))
