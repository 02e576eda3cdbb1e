"""Refuse a provider's responses that are no answer, or an answer that the provider stopped; name what an answer lacks."""

from __future__ import annotations

import json
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ContentFilterError, ModelAPIError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart
from pydantic_ai.models import Model, ModelRequestContext

from flujo_client.errors import (
    AgentError,
    AnswerCut,
    AnswerEmpty,
    AnswerFiltered,
    AnswerTooLarge,
    UnknownToolCalled,
    UnreadableResponse,
)
from flujo_client.sizes import MAX_ANSWER_BYTES
from flujo_worker.agents.models import each_of
from flujo_worker.agents.previews import emit_response
from flujo_worker.concurrency.call_context import setting
from flujo_worker.observe.log import emit
from flujo_worker.runtime.units_met import meeting_units

Send = Callable[[ModelRequestContext], Awaitable[ModelResponse]]
_MOST_SHOWN: Final = 200
"""Characters of a body."""


@dataclass(slots=True)
class Heard:
    """The last HTTP response of a request to a model; None where there was none, or its client does not show it."""

    response: Any = None
    is_too_large: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """Return its headers, with names in lower case."""
        given = {} if self.response is None else self.response.headers
        return {name.lower(): value for name, value in given.items()}

    def is_no_stream(self, error: Exception) -> bool:
        """Return whether a request for a stream failed because the response is none."""
        is_missed = type(error) is UnexpectedModelBehavior and error.message.startswith(_NO_STREAM)
        return is_missed and "text/event-stream" not in self.headers.get("content-type", "text/event-stream")

    @property
    def description(self) -> str:
        """Return its status, its content type and the beginning of its body; nothing where there was no response."""
        if self.response is None:
            return ""
        kind, body = self.headers.get("content-type", "no content type"), ""
        with suppress(Exception):  # a body that was not read, or cannot be decoded
            body = str(self.response.text)
        return f"HTTP {self.response.status_code}, {kind}, beginning {body[:_MOST_SHOWN]!r}"


_heard: ContextVar[Heard | None] = ContextVar("heard", default=None)


@contextmanager
def hearing(model: Model[Any]) -> Iterator[Heard]:
    """Return what collects the responses that the model's HTTP client gets inside; a caller inside another shares it."""
    http = getattr(getattr(each_of(model)[0], "client", None), "_client", None)
    hooks = getattr(http, "event_hooks", None)
    if isinstance(hooks, dict) and _collect not in hooks.setdefault("response", []):
        hooks["response"].append(_collect)
    outer = _heard.get()
    if outer is not None:
        yield outer
        return
    with setting(_heard, heard := Heard()):
        yield heard


async def _collect(response: Any) -> None:
    heard = _heard.get()
    if heard is not None:
        heard.response, heard.is_too_large = response, False
        response.aiter_bytes = partial(_bounded, heard, response, response.aiter_bytes)


async def _bounded(heard: Heard, response: Any, read: Any, chunk_size: int | None = None) -> AsyncIterator[bytes]:
    """Read a body, decompressed, up to the limit. It ends there without an error: providers' clients would ask again for any other end."""
    size = 0
    async for part in read(chunk_size):
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            heard.is_too_large = True
            await response.aclose()
            return
        yield part


_READS_RESPONSES: Final = "_process_response"
"""The name, in each of pydantic-ai's models, of the function that reads a provider's response."""
_UNDECODED: Final = (json.JSONDecodeError, UnicodeError)
_NOT_JSON: Final = "Expected a JSON response"
"""How pydantic-ai's error begins for a response of another content type, which has no class of its own."""
_NO_STREAM: Final = "Streamed response ended without"
"""How its error begins for a stream without an answer."""
_ACCEPT: Final = 'or accept such answers with StepConfig(accept_finish_reasons=["{}"])'


class ResponseCheck:
    """Checks a run's responses. `accepted` has `length` and `content_filter` if the step accepts answers that were stopped for them."""

    def __init__(self, accepted: Collection[str] = ()) -> None:
        self._accepted = accepted
        self._last: ModelResponse | None = None
        self._counted, self._is_stored = 0, False
        self._offered: set[str] = set()

    async def send(self, ctx: RunContext[Any], request_context: ModelRequestContext, send: Send) -> ModelResponse:
        """Send a request. Raises UnreadableResponse or AnswerTooLarge."""
        model, found, self._counted = request_context.model, "", ctx.usage.total_tokens
        with hearing(model) as heard:
            try:
                with meeting_units() as met:
                    response = await send(request_context)
                self._is_stored = met.are_stored
            except Exception as error:
                if not (heard.is_too_large or _is_unreadable(error) or heard.is_no_stream(error)):
                    raise
                is_one = len(each_of(model)) == 1  # of several it is not known whose response it is
                found = (is_one and heard.description) or f"{type(error).__name__}: {error}"
        if heard.is_too_large:
            what = f"the response of model {model.model_name} has more than {MAX_ANSWER_BYTES} bytes; the rest was not read"
            way_out = "ask for less, or set `max_tokens`; check the gateway or proxy before the provider"
            raise AnswerTooLarge(what, suggestion=way_out)
        if not found:
            return response
        what = f"the response of model {model.model_name} is not in its provider's format: {found}"
        raise UnreadableResponse(what, suggestion="check the provider's status, and the gateway or proxy before it")

    def accept(
        self, ctx: RunContext[Any], request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Let an answer pass that the provider did not stop. Raises AnswerCut or AnswerFiltered."""
        parameters = request_context.model_request_parameters
        self._last = response
        self._offered = {tool.name for tool in (*parameters.function_tools, *parameters.output_tools)}
        reason = response.finish_reason
        if reason not in ("length", "content_filter"):
            return response
        most = (request_context.model_settings or {}).get("max_tokens")
        if not self._is_stored:
            emit("output.cut", "warning", finish_reason=reason, max_tokens=most)
        if reason in self._accepted:
            return response
        emit_response(response.text or "", reason)
        # An old pydantic-ai counts later, and never counts a response that is refused.
        if ctx.usage.total_tokens == self._counted:
            ctx.usage.incr(response.usage)
        raise _stopped(reason, most, (response.provider_details or {}).get("refusal"))

    def explained(self, error: Exception) -> Exception:
        """Return our error for an answer with nothing in it, or a call of an unknown tool; any other error as it is."""
        if type(error) is not UnexpectedModelBehavior or self._last is None:
            return error
        unknown = [part.tool_name for part in self._last.tool_calls if part.tool_name not in self._offered]
        if unknown:
            return _unknown_tool(self._last, unknown[0], self._offered)
        return error if _says_anything(self._last) else _empty(self._last)


def _stopped(reason: str, max_tokens: int | None, refusal: str | None) -> AgentError:
    if reason == "length":
        limit = "the model's own" if max_tokens is None else f"`max_tokens` {max_tokens}"
        what = f"the answer was cut off at the token limit ({limit}; finish reason `length`)"
        return AnswerCut(what, suggestion=f"raise `max_tokens`, ask for less, {_ACCEPT.format(reason)}")
    if refusal:
        what = f"the model refused to answer: {refusal[:_MOST_SHOWN]!r}"
        return AnswerFiltered(what, suggestion=f"change the input or the prompt, {_ACCEPT.format(reason)}")
    what = "the provider's content filter stopped the answer (finish reason `content_filter`)"
    way_out = f"change the input, the prompt or the provider's filter, {_ACCEPT.format(reason)}"
    return AnswerFiltered(what, suggestion=way_out)


def _unknown_tool(response: ModelResponse, name: str, offered: Collection[str]) -> AgentError:
    tools = ", ".join(sorted(offered)) or "none"
    what = f"model {response.model_name} called the tool {name[:64]!r}, which it was not offered (offered: {tools})"
    return UnknownToolCalled(what, suggestion="give the agent a tool of that name, or take the name out of its prompt")


def _empty(response: ModelResponse) -> AgentError:
    what, way_out = "an empty answer", "try another model, or say what to answer then"
    if any(isinstance(part, ThinkingPart) for part in response.parts):
        what, way_out = "only thinking and no answer", "let it think less, or raise `max_tokens`"
    facts = f"finish reason `{response.finish_reason}`, {response.usage.output_tokens} output tokens"
    return AnswerEmpty(f"model {response.model_name} returned {what} ({facts})", suggestion=way_out)


def _says_anything(response: ModelResponse) -> bool:
    parts = [part for part in response.parts if not isinstance(part, ThinkingPart)]
    return any(not isinstance(part, TextPart) or part.content.strip() for part in parts)


def _is_unreadable(error: Exception) -> bool:
    """Return whether the library could not read a response: what it raised while it did, or that the body is not JSON."""
    if isinstance(error, ModelAPIError):
        is_undecoded = isinstance(error.__cause__, _UNDECODED)
        return type(error) is ModelAPIError and (is_undecoded or error.message.startswith(_NOT_JSON))
    if isinstance(error, ContentFilterError):
        return False
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, _UNDECODED) and any("httpx" in code.co_filename for code in codes):
        return True  # an old pydantic-ai has no error of its own for it
    return any(code.co_name == _READS_RESPONSES and "pydantic_ai" in code.co_filename for code in codes)
