"""The kombu serializer `flujo`: JSON by orjson, signed when there are keys.

It converts Celery's payloads to bytes and back. It does not know what the messages mean, and it signs only bodies: message headers are
Celery's and stay unsigned, so a body must repeat everything that must not be swapped. A rejected message raises kombu's DecodeError, which
a Celery consumer logs and drops; an empty body never reaches a kombu decoder, so the consumer rejects it.

A signed body is one header line, `fw1:<key id>:<hex of HMAC-SHA256>`, and then the JSON.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import orjson
from kombu import serialization

from flujo_client.errors import KeyMissing, SerializationError, SettingsError
from flujo_client.serial.tree import type_name
from flujo_client.transport.entry import CONTENT_ENCODING, CONTENT_TYPE

SERIALIZER: Final = "flujo"
MAX_BYTES: Final = 16 * 1024 * 1024

Keys = Sequence[tuple[str, bytes]]

_MARK: Final = b"fw1:"
_HEADER: Final = re.compile(rb"fw1:([A-Za-z0-9_.-]{1,64}):([0-9a-f]{64})\n")
_KEY_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SHORTEST_SECRET: Final = 16
# Celery's lazy lists hold nothing in the C list that orjson reads: subclasses must pass through `_plainer`.
_OPTIONS: Final = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def register(keys: Keys = (), *, max_bytes: int = MAX_BYTES) -> None:
    """Make the serializer known to kombu in this process; calling it again replaces keys and limit. Raises SettingsError for unfit keys.

    The first of the keys signs, all verify. With none, nothing is signed and anything signed is refused.
    """
    _check_keys(keys)
    serialization.register(
        SERIALIZER,
        partial(dump, keys=tuple(keys), max_bytes=max_bytes),  # type: ignore[arg-type]  # kombu carries bytes as well
        partial(load, keys=tuple(keys), max_bytes=max_bytes),
        content_type=CONTENT_TYPE,
        content_encoding=CONTENT_ENCODING,
    )


def register_later(settle: Callable[[], object]) -> None:
    """Make the serializer known to kombu in this process; the first message that is written or read calls `settle`, which is to `register`."""

    def write(payload: Any) -> Any:
        settle()
        return serialization.dumps(payload, serializer=SERIALIZER)[2]

    def read(body: Any) -> Any:
        settle()
        return serialization.loads(body, CONTENT_TYPE, CONTENT_ENCODING, accept={CONTENT_TYPE})

    serialization.register(SERIALIZER, write, read, content_type=CONTENT_TYPE, content_encoding=CONTENT_ENCODING)


def dump(payload: Any, *, keys: Keys = (), max_bytes: int = MAX_BYTES) -> bytes:
    """Write a message body. Raises SerializationError naming the first thing that is not plain, or the size."""
    try:
        text = orjson.dumps(payload, default=_plainer, option=_OPTIONS)
    except orjson.JSONEncodeError as error:
        path, culprit = _culprit(payload, "message")
        what = f"object of type {type_name(type(culprit))} is not plain JSON"
        way_out = "send a tree that encode() returned"
        raise SerializationError(what, path=path, suggestion=way_out, cause=error) from error
    return _sized(sign(text, keys[0]) if keys else text, max_bytes)


def load(body: bytes | str | memoryview, *, keys: Keys = (), max_bytes: int = MAX_BYTES) -> Any:
    """Read a message body. Raises SerializationError for anything but a list or mapping, signed as agreed."""
    raw = body.encode() if isinstance(body, str) else bytes(body)
    text = verify(_sized(raw, max_bytes), keys)
    try:
        payload = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = f"the message is not JSON: {error.msg} at character {error.pos}"
    else:
        if isinstance(payload, (list, dict)):
            return payload
        reason = f"the message is a bare {type(payload).__name__}"  # a bare value ends Celery's consumer
    raise SerializationError(reason)


def sign(text: bytes, key: tuple[str, bytes]) -> bytes:
    """Put the header line before the text."""
    key_id, secret = key
    return b"%b%b:%b\n%b" % (_MARK, key_id.encode(), _mac(secret, key_id.encode(), text), text)


def verify(body: bytes, keys: Keys) -> bytes:
    """Return the text without its header line. Raises SerializationError: it is not signed, or with a key that is not one of `keys`.

    Raises KeyMissing: the signature is another than the key's that it names: the text was changed, or signed with another secret.
    """
    if not body.startswith(_MARK):
        if keys:
            what = "the message is not signed"
            raise SerializationError(what, suggestion="configure one of the signing keys on its sender")
        return body
    header = _HEADER.match(body)
    if header is None:
        raise SerializationError("the message's signature line is damaged")
    key_id, claimed = header.groups()
    secret = dict(keys).get(key_id.decode())
    if secret is None:
        what = f"the message is signed with the unknown key {key_id.decode()!r}"
        raise SerializationError(what, suggestion="add that key here")
    text = body[header.end() :]
    if not hmac.compare_digest(_mac(secret, key_id, text), claimed):
        what = f"the message's signature does not fit its content, or its sender has another secret for the key {key_id.decode()!r}"
        raise KeyMissing(what, key_id=key_id.decode())
    return text


def _mac(secret: bytes, key_id: bytes, text: bytes) -> bytes:
    mac = hmac.new(secret, b"%b%b\n" % (_MARK, key_id), hashlib.sha256)
    mac.update(text)
    return mac.hexdigest().encode()


def _sized(body: bytes, max_bytes: int) -> bytes:
    if len(body) > max_bytes:
        what = f"the message has {len(body)} bytes, more than the {max_bytes} allowed"
        raise SerializationError(what, suggestion="send a reference to large values")
    return body


def _plainer(value: Any) -> Any:
    """Convert Celery's own containers, such as signatures and lazy lists, to the plain ones that they are subclasses of."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list):
        return list(value)
    raise TypeError(type_name(type(value)))


def _culprit(value: Any, path: str) -> tuple[str, Any]:
    """Find what orjson refused; only ever walked on the way to an error."""
    sequence: Any = value if isinstance(value, (list, tuple)) else ()
    for key, child in value.items() if isinstance(value, dict) else enumerate(sequence):
        try:
            orjson.dumps(child, default=_plainer, option=_OPTIONS)
        except orjson.JSONEncodeError:
            return _culprit(child, f"{path}[{key!r:.80}]")
    return path, value


def _check_keys(keys: Keys) -> None:
    for key_id, secret in keys:
        if not _KEY_ID.fullmatch(key_id):
            raise SettingsError(f"signing key id {key_id!r}: use 1 to 64 of A-Z a-z 0-9 _ . -")
        if len(secret) < _SHORTEST_SECRET:
            raise SettingsError(f"signing key {key_id!r}: the secret must have at least {_SHORTEST_SECRET} bytes")
    if len({key_id for key_id, _ in keys}) < len(keys):
        raise SettingsError("signing keys: a key id is used twice")
