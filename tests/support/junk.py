"""Items that do not belong in a queue's list: junk that is not a message, bombs, and messages that were tampered with.

Pure but for `push`. In goes a genuine message as it lies in Redis, out come hostile ones. The chaos suite draws from here too.
"""

import base64
import gzip
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import orjson
import redis

Message = dict[str, Any]

MEGABYTE = 1024 * 1024
BOMB_BYTES = 400 * MEGABYTE


def _outer(**changed: Any) -> bytes:
    """A message that only differs in these from one that Celery would read."""
    message: Message = {
        "body": base64.b64encode(b"[[], {}, null]").decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": "nobody.knows", "id": "junk"},
        "properties": {
            "correlation_id": "junk",
            "delivery_info": {"exchange": "", "routing_key": "flujo.attempts"},
            "body_encoding": "base64",
            "delivery_tag": "junk",
        },
    }
    return orjson.dumps({name: value for name, value in {**message, **changed}.items() if value is not ...})


def _properties(**changed: Any) -> bytes:
    properties = {**orjson.loads(_outer())["properties"], **changed}
    return _outer(properties={name: value for name, value in properties.items() if value is not ...})


def _headers(**changed: Any) -> bytes:
    headers = {**orjson.loads(_outer())["headers"], **changed}
    return _outer(headers={name: value for name, value in headers.items() if value is not ...})


JUNK: dict[str, bytes] = {
    "nothing": b"",
    "text": b"hello",
    "invalid UTF-8": b"\xff\xfe\x00junk",
    "half a message": _outer()[:100],
    "a number": b"5",
    "null": b"null",
    "a string": b'"hello"',
    "a list": b"[1, 2, 3]",
    "an empty object": b"{}",
    "deep nesting": b"[" * 100_000,
    "deep nesting that is closed": b"[" * 900 + b"]" * 900,
    "deep nesting in a header": b'{"properties": {}, "headers": {"task": ' + b"[" * 900 + b"]" * 900 + b"}}",
    "ten megabytes of zeros": bytes(10 * MEGABYTE),
    "a body of 40 megabytes": _outer(body="A" * 40 * MEGABYTE),
    "no properties": _outer(properties=...),
    "properties that are a list": _outer(properties=[]),
    "no delivery tag": _properties(delivery_tag=...),
    "a delivery tag that is an object": _properties(delivery_tag={}),
    "no delivery info": _properties(delivery_info=...),
    "delivery info without an exchange": _properties(delivery_info={"routing_key": "flujo.attempts"}),
    "delivery info that is a number": _properties(delivery_info=5),
    "an unknown body encoding": _properties(body_encoding="rot13"),
    "a body encoding that is a number": _properties(body_encoding=5),
    "a body that is no base64": _outer(body="not base64 at all!"),
    "a body that is a number": _outer(body=5),
    "headers that are a list": _outer(headers=["task"]),
    "headers that kombu makes a UUID of": _outer(headers={"__type__": "uuid", "__value__": {"hex": "0" * 32}}),
    "a header that kombu cannot make a date of": _headers(eta={"__type__": "datetime", "__value__": "soon"}),
    "a task that is a list": _headers(task=["flujo.attempt"]),
    "no task": _headers(task=...),
    "no task id": _headers(id=...),
    "a task id that is an object": _headers(id={}),
    "our task without an id": _headers(task="flujo.attempt", id=...),
    "an unknown compression": _headers(compression="squeeze"),
    "a compression that is a list": _headers(compression=["gzip"]),
    "an unknown content type": _outer(**{"content-type": "application/x-unheard-of"}),
    "a content type that is a number": _outer(**{"content-type": 5}),
    "an unknown content encoding": _outer(**{"content-encoding": "rot13"}),
    "trusted bytes for our task": _headers(task="flujo.sweep").replace(b"application/json", b"application/data"),
    "a time limit that is text": _headers(task="flujo.sweep", timelimit="soon").replace(
        b"application/json", b"application/x-flujo+json"
    ),
    "an ETA that is a list": _headers(task="flujo.sweep", eta=[]).replace(
        b"application/json", b"application/x-flujo+json"
    ),
}
"""Whatever anyone may push into a list: no worker may end of it, or read it twice."""


def bomb(message: Message, size: int = BOMB_BYTES) -> Message:
    """A message whose body unpacks to `size` bytes, unless someone looks at it first."""
    return {**with_header(message, compression="gzip"), "body": _bomb_body(size)}


@cache
def _bomb_body(size: int) -> str:
    """Compress so many zeros. Cached: the largest takes a second."""
    return base64.b64encode(gzip.compress(bytes(size), compresslevel=9)).decode()


def body_of(message: Message) -> bytes:
    """The body as it was signed."""
    return base64.b64decode(message["body"])


def with_body(message: Message, body: bytes, **rest: Any) -> Message:
    """The message with another body."""
    return {**message, "body": base64.b64encode(body).decode(), **rest}


def with_header(message: Message, **headers: Any) -> Message:
    """The message with other headers."""
    return {**message, "headers": {**message["headers"], **headers}}


def as_json(message: Message) -> Message:
    """The message as stock Celery would write it: unsigned, with the content type that most apps accept."""
    text = body_of(message)
    return with_body(
        message,
        text.partition(b"\n")[2] if text.startswith(b"fw1:") else text,
        **{"content-type": "application/json", "content-encoding": "utf-8"},
    )


def embedding(message: Message, **embed: Any) -> Message:
    """The message with something for Celery to do afterwards; its signature, if it had one, no longer fits."""
    args, kwargs, embedded = orjson.loads(body_of(message))
    return with_body(message, orjson.dumps([args, kwargs, {**embedded, **embed}]))


def carrying(message: Message, **fields: Any) -> Message:
    """The message with other fields in its envelope; its signature, if it had one, no longer fits."""
    [wire], kwargs, embed = orjson.loads(body_of(message))
    return with_body(message, orjson.dumps([[{**wire, **fields}], kwargs, embed]))


def changed(message: Message, changes: Iterable[Callable[[Message], Message]]) -> bytes:
    """The message as it is pushed after these changes."""
    for change in changes:
        message = change(message)
    return orjson.dumps(message)


def push(client: redis.Redis, queue: str, items: Iterable[bytes]) -> None:
    """Put items behind whatever is in a queue."""
    for item in items:
        client.lpush(queue, item)
