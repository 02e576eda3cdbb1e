"""Check an item of a queue's list before Celery may read it.

Pure: bytes in, the message or a rejection out. kombu reads any item of a Redis list as a message: another item ends the worker, and a body
with a `compression` header is unpacked before its signature is checked. Every message that Celery writes passes.
"""

from __future__ import annotations

import base64
from collections.abc import Container
from typing import Any

import orjson
from kombu.utils.json import loads

from flujo_worker.errors import WireError

MOST_DEPTH = 50
"""The maximum nesting of a message's headers and properties: kombu writes them again recursively."""
MOST_AROUND = 256 * 1024
"""The maximum bytes of headers and properties."""
_LONGEST_TAG = 255
_NESTING = frozenset((dict, list))
_TYPED = "__type__"
"""The key by which kombu's JSON marks a date, a UUID or another registered type."""
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PADDING = 2
_BASE64 = "base64"
_PLAIN = (None, "", "utf-8")


def largest_item(max_bytes: int) -> int:
    """Return the maximum bytes of a list item whose body has `max_bytes`: it is encoded as base64."""
    return max_bytes * 4 // 3 + MOST_AROUND


def screen(
    item: bytes, *, is_ours: bool, own: Container[str], others: Container[str], max_bytes: int
) -> dict[str, Any]:
    """Return the message that an item is, as kombu would read it; raise WireError unless Celery can handle it safely.

    Args:
        item: as it was popped from the list.
        is_ours: whether the list is one of our queues.
        own: the names of our tasks, which take nothing compressed and nothing larger than `max_bytes`.
        others: the names of tasks that follow their own rules in our lists too.
        max_bytes: the largest body.
    """
    too_large = len(item) > largest_item(max_bytes)
    if is_ours and too_large:
        raise _oversized(item)
    message: dict[str, Any] = _read(item)
    levels = _levels(message)
    if any(_TYPED in value for level in levels for value in level):
        message = _read_as_kombu(item)
        levels = _levels(message)
    flaw = _flaw(message, depth=len(levels))
    if flaw is not None:
        raise WireError(flaw, reason="malformed")
    headers = message.get("headers") or {}
    task = headers.get("task")
    if task in own and too_large:
        raise _oversized(item)
    if headers.get("compression") and (task in own or (is_ours and task not in others)):
        raise WireError("its body is compressed", reason="compressed")
    return message


def _read(item: bytes) -> Any:
    """Read an item; with kombu's own reader, which is slower, only where it may say something else."""
    try:
        return orjson.loads(item)
    except orjson.JSONDecodeError:
        return _read_as_kombu(item)


def _read_as_kombu(item: bytes) -> Any:
    try:
        return loads(item.decode())
    except Exception as error:  # the app's registered decoders may raise anything
        raise WireError(f"it is not JSON: {type(error).__name__}", reason="malformed") from error


def _oversized(item: bytes) -> WireError:
    return WireError(f"it has {len(item)} bytes", reason="too_large")


def _flaw(message: Any, *, depth: int) -> str | None:
    """Return what kombu or Celery would stumble over, if anything."""
    if not isinstance(message, dict):
        return "it is not a JSON object"
    properties, headers = message.get("properties"), message.get("headers")
    if not isinstance(properties, dict) or not isinstance(headers, dict | None):
        return "its properties and headers must be objects"
    if not all(isinstance(message.get(name), str | None) for name in ("body", "content-type", "content-encoding")):
        return "its body, content type and content encoding must be strings"
    if depth > MOST_DEPTH:
        return f"it nests deeper than {MOST_DEPTH}"
    return _flaw_of_properties(properties) or _flaw_of_task(headers or {}) or _flaw_of_body(message, properties)


def _flaw_of_properties(properties: dict[str, Any]) -> str | None:
    tag, delivery = properties.get("delivery_tag"), properties.get("delivery_info")
    if not isinstance(tag, str) or not tag.isascii() or not 0 < len(tag) <= _LONGEST_TAG:
        return "it has no delivery tag"
    if not isinstance(delivery, dict):
        return "it has no delivery info"
    if not all(isinstance(delivery.get(name), str) for name in ("exchange", "routing_key")):
        return "its delivery info lacks an exchange or a routing key"
    return None


def _flaw_of_task(headers: dict[str, Any]) -> str | None:
    """Find what is wrong with the task, which the headers name, with its id, since protocol 2."""
    named = [headers[name] for name in ("task", "id") if name in headers]
    if not all(isinstance(name, str) for name in named):
        return "its task and task id must be strings"
    if "task" in headers and "id" not in headers:
        return "it has no task id"
    return None


def _flaw_of_body(message: dict[str, Any], properties: dict[str, Any]) -> str | None:
    encoding = properties.get("body_encoding")
    if encoding in _PLAIN:
        return None
    if encoding != _BASE64:
        return "its body encoding is unknown"
    body = (message.get("body") or "").encode(errors="replace")
    if _is_plain_base64(body):
        return None
    try:
        base64.b64decode(body)
    except ValueError:
        return "its body is not base64"
    return None


def _is_plain_base64(body: bytes) -> bool:
    """Return whether a body is base64 as everybody writes it: in a quarter of the time that decoding takes."""
    text = body.rstrip(b"=")
    return len(body) % 4 == 0 and len(body) - len(text) <= _PADDING and not text.translate(None, _ALPHABET)


def _levels(message: Any) -> list[list[Any]]:
    """Return the objects and lists of each depth, down to the first that is too deep. No recursion: junk nests without end."""
    levels: list[list[Any]] = []
    level: list[Any] = [message] if type(message) in _NESTING else []
    while level and len(levels) <= MOST_DEPTH:
        levels.append(level)
        level = [
            child
            for value in level
            for child in (value.values() if type(value) is dict else value)
            if type(child) in _NESTING
        ]
    return levels
