"""How many requests an agent makes in one attempt, and how much of its conversation each sends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.usage import UsageLimits

from flujo_client.errors import NonRetryableError
from flujo_client.pipeline.step import Step
from flujo_worker.domain.budget import BYTES_PER_TOKEN


class Turns:
    """The bounds that a step gives its agent.

    Attributes:
        limits: those of the library; None for its own.
        history: the capability that shortens the conversation, if the step bounds it.
    """

    def __init__(self, step: str = "", most: int | None = None, tokens: int | None = None) -> None:
        self._step, self._most = step, most
        self.limits = None if most is None else UsageLimits(request_limit=most)
        self.history: list[Any] = (
            [] if tokens is None else [ProcessHistory[Any](lambda messages: shortened(messages, tokens))]
        )

    @classmethod
    def of(cls, step: Step) -> Self:
        """Read them from a step."""
        return cls(step.name, step.config.max_turns, step.config.history_max_tokens)

    def explained(self, error: Exception) -> Exception:
        """Return what to raise for an agent's error: after too many turns, one that names the step and is not retried."""
        if self._most is None or not isinstance(error, UsageLimitExceeded):
            return error
        what = f"the agent of step '{self._step}' has made {self._most} requests without an answer, as many as max_turns allows"
        return NonRetryableError(what, suggestion="raise max_turns, or give the agent less to do", code="MAX_TURNS")


def shortened(messages: Sequence[ModelMessage], most: int) -> list[ModelMessage]:
    """Return a conversation of about so many tokens: its beginning, and the latest turns that fit, at least one.

    A turn begins with an answer: what answers its calls of tools stays with it.
    """
    starts = [place for place, each in enumerate(messages) if isinstance(each, ModelResponse)]
    sizes = [math.ceil(len(ModelMessagesTypeAdapter.dump_json([each])) / BYTES_PER_TOKEN) for each in messages]
    for start in starts[:-1] if sum(sizes) > most else ():
        kept = sizes[: starts[0]] + sizes[start:]
        if sum(kept) <= most:
            return [*messages[: starts[0]], *messages[start:]]
    return [*messages[: starts[0]], *messages[starts[-1] :]] if sum(sizes) > most and starts else list(messages)
