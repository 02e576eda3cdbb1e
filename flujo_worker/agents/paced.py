"""Requests to models with a rate limit: each one waits for its turn, and what it used is reported.

A capability, one for each run of an agent in an attempt. It must not change a request. In: what the library is
about to send. Out: the response, later.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from pydantic_ai.capabilities import AbstractCapability

from flujo_worker.agents.heard import hearing
from flujo_worker.agents.models import each_of
from flujo_worker.agents.previews import text_of
from flujo_worker.domain.budget import BYTES_PER_TOKEN
from flujo_worker.runtime.attempt_run import ModelPace, current_settings
from flujo_worker.runtime.http_errors import left_of
from flujo_worker.runtime.service_errors import is_rate_refusal

if TYPE_CHECKING:
    from pydantic_ai import RunContext
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model, ModelRequestContext


class Paced(AbstractCapability[Any]):
    """Paces an agent's requests.

    Args:
        pace: the running attempt's.
    """

    def __init__(self, pace: ModelPace) -> None:
        self._pace = pace

    async def wrap_model_request(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - the library passes it by name
        *,
        request_context: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        """Send the request when its model's limit allows it."""
        limit = self._pace.limit_of(_name_of(request_context.model))
        if limit is None:
            return await handler(request_context)
        grant = await self._pace.begin(limit, _expected_tokens(request_context))
        try:
            with hearing(request_context.model) as heard:
                response = await handler(request_context)
        except Exception as error:
            if is_rate_refusal(error, by_library=True):
                await self._pace.end(limit, grant, 0)
            raise
        await self._pace.end(limit, grant, response.usage.total_tokens, left_of(heard.headers))
        return response


def _name_of(model: Model[Any]) -> str:
    """Return the provider and the name of a model; of several that it may ask, those of the first."""
    first = each_of(model)[0]
    return f"{first.system}:{first.model_name}"


def _expected_tokens(request: ModelRequestContext) -> int:
    settings: Any = request.model_settings or {}
    read = sum(
        len(text_of(part.content).encode())
        for each in request.messages
        for part in each.parts
        if hasattr(part, "content")
    )
    read += sum(len((getattr(each, "instructions", None) or "").encode()) for each in request.messages)
    written = settings.get("max_tokens") or current_settings().cost.default_output_tokens
    return math.ceil(read / BYTES_PER_TOKEN) + int(written)
