"""Listen to a provider's HTTP responses, of which the agent library shows only what it could read, and bound them.

It works where the provider's client is built on httpx, as OpenAI's and Anthropic's are. In: a model. Out: its last response, of which it
must change nothing but the end of one that is too large.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flujo_client.sizes import MAX_ANSWER_BYTES
from flujo_worker.agents.models import each_of

if TYPE_CHECKING:
    from pydantic_ai.models import Model

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

    @property
    def description(self) -> str:
        """Return its status, its content type and the beginning of its body; nothing where there was no response."""
        if self.response is None:
            return ""
        kind = self.headers.get("content-type", "no content type")
        return f"HTTP {self.response.status_code}, {kind}, beginning {_beginning(self.response)!r}"


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
    token = _heard.set(heard := Heard())
    try:
        yield heard
    finally:
        _heard.reset(token)


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


def _beginning(response: Any) -> str:
    try:
        text = str(response.text)
    except Exception:  # noqa: BLE001 - a body that was not read, or cannot be decoded
        return ""
    return text[:_MOST_SHOWN]
