"""The only module that uses redis-py, for clients and workers: how we connect, and our names for its errors.

Celery and kombu have their own connections, which these options do not affect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis import Redis, Sentinel
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

from flujo_client.config.models import SENTINEL

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ConnectionLost",
    "NoAnswer",
    "Redis",
    "RedisError",
    "ResponseError",
    "connect",
    "is_denied",
    "is_not_allowed",
]

_MAX_CONNECTIONS = 64
_SENTINEL_PORT = 26379


def connect(url: str, sentinel: Mapping[str, Any], *, patience_s: float | None = None) -> Redis:
    """Make a client, which connects when it is first used. Safe for several threads.

    Args:
        url: where Redis is, or its Sentinels are.
        sentinel: what `Settings.sentinel_options()` returns.
        patience_s: seconds that each command may take, for callers that can do without an answer: a connection that is gone is
            replaced once and without a pause. None waits up to 10 seconds, and tries again as redis-py does.
    """
    options: dict[str, Any] = {"socket_timeout": 10.0, "socket_connect_timeout": 5.0}
    if patience_s is not None:
        once = Retry(NoBackoff(), 1, (ConnectionLost,))
        options = {"socket_timeout": patience_s, "socket_connect_timeout": patience_s, "retry": once}
    options |= {"socket_keepalive": True, "max_connections": _MAX_CONNECTIONS}
    if not url.startswith(SENTINEL):
        return Redis.from_url(url, **options)
    return _through_sentinels(url, sentinel, options)


def _through_sentinels(url: str, sentinel: Mapping[str, Any], options: Mapping[str, Any]) -> Redis:
    """Make a client whose connections ask the Sentinels for the primary. The first URL has the primary's password and database, as for kombu."""
    parse: Any = parse_url  # redis-py types neither this nor its Sentinel
    sentinels: Any = Sentinel
    places = [dict(parse(each.replace(SENTINEL, "redis://", 1))) for each in url.split(";")]
    hosts = [(each.pop("host", "localhost"), each.pop("port", _SENTINEL_PORT)) for each in places]
    asking = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout")}
    own = {**sentinel.get("sentinel_kwargs", {}), **asking}
    client: Redis = sentinels(hosts, sentinel_kwargs=own, **places[0], **options).master_for(sentinel["master_name"])
    return client


def is_denied(error: Exception) -> bool:
    """Return whether the user may not run a command, or not on that key or channel."""
    return isinstance(error, NoPermissionError)


def is_not_allowed(error: ResponseError) -> bool:
    """Return whether a server refuses a command permanently: it does not know it, or the user may not use it."""
    return is_denied(error) or str(error).lower().startswith("unknown command")
