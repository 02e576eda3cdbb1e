"""The only module that uses redis-py, for clients and workers: how we connect, and our names for its errors.

Celery and kombu have their own connections, which these options do not affect.
"""

from __future__ import annotations

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

__all__ = ["ConnectionLost", "NoAnswer", "Redis", "RedisError", "ResponseError", "connect", "is_not_allowed"]

_MAX_CONNECTIONS = 64


def connect(url: str, *, patience_s: float | None = None) -> Redis:
    """Make a client, which connects when it is first used. Safe for several threads.

    Args:
        url: where Redis is.
        patience_s: seconds that each command may take, for callers that can do without an answer: a connection that is gone is
            replaced once and without a pause. None waits up to 10 seconds, and tries again as redis-py does.
    """
    if patience_s is None:
        return Redis.from_url(
            url, socket_timeout=10, socket_connect_timeout=5, socket_keepalive=True, max_connections=_MAX_CONNECTIONS
        )
    return Redis.from_url(
        url,
        socket_timeout=patience_s,
        socket_connect_timeout=patience_s,
        socket_keepalive=True,
        max_connections=_MAX_CONNECTIONS,
        retry=Retry(NoBackoff(), 1, (ConnectionLost,)),
    )


def is_not_allowed(error: ResponseError) -> bool:
    """Return whether a server refuses a command permanently: it does not know it, or the user may not use it."""
    return isinstance(error, NoPermissionError) or str(error).lower().startswith("unknown command")
