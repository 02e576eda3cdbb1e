"""The only module that uses redis-py, for clients and workers: connections, our names for its errors, and the rights that its users need.

Celery and kombu have their own connections, which these options do not affect. Everything of ours lies under the settings' key prefix: queues,
chords, breakers, the cache, and the channels of Celery's remote control.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from redis import ConnectionPool, Redis, Sentinel
from redis.backoff import FullJitterBackoff, NoBackoff
from redis.connection import parse_url
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.exceptions import NoScriptError as NoScript
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from flujo_client.config.models import SENTINEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["ConnectionLost", "NoAnswer", "NoScript", "Redis", "RedisError", "ResponseError", "connect", "is_denied"]
__all__ += ["is_not_allowed", "lacking", "rules", "sharing"]

_MAX_CONNECTIONS = 64
_ANSWER_S: Final = 5.0
_ONCE_MORE: Final = Retry(NoBackoff(), 1, (ConnectionLost,))
_SENTINEL_PORT = 26379
COMMANDS: Final = "-@all +@read +@write +@pubsub +@scripting +@transaction +@connection -@dangerous +time +info"
"""The commands, by Redis's own categories. INFO and TIME are for `flujo doctor`; TIME is also the clock of breakers and rate limits."""
_REMOTE: Final = "/{database}.celery.pidbox"
_KEY, _CHANNEL = "flujo:doctor", "channel"
_ON_A_KEY: Final[tuple[tuple[str, ...], ...]] = (
    ("LPUSH", "1"), ("RPUSH", "1"), ("RPOP",), ("BRPOP", "1"), ("LLEN",), ("LINDEX", "0"), ("LTRIM", "0", "1"),
    ("GET",), ("SET", "1"), ("DEL",), ("EXISTS",), ("EXPIRE", "1"), ("PEXPIRE", "1"),
    ("HSET", "a", "1"), ("HGETALL",), ("HINCRBY", "a", "1"), ("HDEL", "a"),
    ("SADD", "1"), ("SREM", "1"), ("SMEMBERS",), ("SISMEMBER", "1"),
    ("ZADD", "1", "a"), ("ZREM", "a"), ("ZRANGE", "0", "1"), ("ZCOUNT", "0", "1"), ("ZRANGEBYSCORE", "0", "1"), ("ZREVRANGEBYSCORE", "1", "0"),
)  # fmt: skip
"""Commands whose first argument is a key; with what follows it."""


def connect(
    url: str,
    sentinel: Mapping[str, Any],
    *,
    patience_s: float | None = None,
    most: int = _MAX_CONNECTIONS,
    repeats: bool = True,
) -> Redis:
    """Make a client, which connects when it is first used. Safe for several threads.

    `sentinel` is what `Settings.sentinel_options()` returns. Each command may take `patience_s` seconds, for callers that can do without an
    answer: a connection that is gone is replaced once and without a pause. None waits up to 5 seconds, and tries again ten times, with pauses
    of up to a second; unless it `repeats`, only where a connection is gone, so that a command without an answer takes 5 seconds and not a minute.
    A thread that needs one more connection than `most` waits until one is free.
    """
    errors = [ConnectionLost, NoAnswer] if repeats else [ConnectionLost]
    retry = Retry(FullJitterBackoff(cap=1, base=0.01), 10, tuple(errors))
    if patience_s is not None:
        retry, errors = _ONCE_MORE, [ConnectionLost]
    options: dict[str, Any] = {
        "socket_timeout": patience_s or _ANSWER_S,
        "socket_connect_timeout": patience_s or 3.0,
        "socket_keepalive": True,
        "max_connections": _MAX_CONNECTIONS,
        "most": most,
        "retry": retry,
        "retry_on_error": errors,  # redis-py before 6 tries nothing again without it
    }
    if not url.startswith(SENTINEL):
        return Redis(connection_pool=_Few.from_url(url, **options))
    return _through_sentinels(url, sentinel, options)


def sharing(client: Redis, patience_s: float) -> Redis:
    """Make a client with that patience on the connections of another one."""
    lender: Any = _Hurried(client.connection_pool, patience_s)
    return Redis(connection_pool=lender)


class _Lending:
    """Lends at most so many connections. No thread waits here while it has one: each command and each pipeline returns its own."""

    def __init__(self, *args: Any, most: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._free, self._retry = threading.Semaphore(most), options["retry"]

    def get_connection(self, *args: Any, patience_s: float | None = None, **options: Any) -> Any:
        lender: Any = super()
        if not self._free.acquire(timeout=patience_s or _ANSWER_S):
            raise ConnectionLost(f"no connection was free within {patience_s or _ANSWER_S:g} s")
        connection = lender.get_connection(*args, **options)  # it releases one that it cannot lend
        connection.retry = self._retry if patience_s is None else _ONCE_MORE
        connection._sock.settimeout(patience_s or connection.socket_timeout)  # noqa: SLF001 - redis-py has no other way
        return connection

    def release(self, connection: Any) -> None:
        lender: Any = super()
        lender.release(connection)
        self._free.release()


class _Few(_Lending, ConnectionPool): ...


class _FewOfPrimary(_Lending, SentinelConnectionPool): ...


class _Hurried:
    """Lends the connections of another pool to callers of less patience."""

    def __init__(self, pool: Any, patience_s: float) -> None:
        self._pool, self._patience_s = pool, patience_s

    def get_connection(self, *args: Any, **options: Any) -> Any:
        return self._pool.get_connection(*args, patience_s=self._patience_s, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def _through_sentinels(url: str, sentinel: Mapping[str, Any], options: Mapping[str, Any]) -> Redis:
    """Make a client whose connections ask the Sentinels for the primary. The first URL has the primary's password and database, as for kombu."""
    parse: Any = parse_url  # redis-py types neither this nor its Sentinel
    sentinels: Any = Sentinel
    places = [dict(parse(each.replace(SENTINEL, "redis://", 1))) for each in url.split(";")]
    hosts = [(each.pop("host", "localhost"), each.pop("port", _SENTINEL_PORT)) for each in places]
    asking = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout")}
    own = {**sentinel.get("sentinel_kwargs", {}), **asking}
    known = sentinels(hosts, sentinel_kwargs=own, **places[0], **options)
    client: Redis = known.master_for(sentinel["master_name"], connection_pool_class=_FewOfPrimary)
    return client


def is_denied(error: Exception) -> bool:
    """Return whether the user may not run a command, or not on that key or channel."""
    return isinstance(error, NoPermissionError)


def is_not_allowed(error: ResponseError) -> bool:
    """Return whether a server refuses a command permanently: it does not know it, or the user may not use it."""
    return is_denied(error) or str(error).lower().startswith("unknown command")


def rules(prefix: str, database: int) -> str:
    """Return the rules for ACL SETUSER: this key prefix and its channels, and no more commands than needed.

    A subscription to a pattern needs a rule with that very text: hence the channel of remote control in the database.
    """
    remote = f"{prefix}{_REMOTE.format(database=database)}"
    return f"resetkeys ~{prefix}* resetchannels &{prefix}* &{remote} {COMMANDS}"


def lacking(connection: Any, prefix: str, database: int) -> Sequence[str]:
    """Return what a user may not do of what is needed: names of commands, keys and channels. Nothing is done.

    The commands are queued in a transaction that is then discarded; Redis checks rights when it queues. The connection is for this alone.
    """
    connection.send_command("MULTI")
    try:
        connection.read_response()
    except ResponseError:
        return ("MULTI",)  # without it, the others would be carried out
    found = [_lack(connection, *each) for each in _needed(prefix, database)]
    connection.send_command("DISCARD")
    return tuple(dict.fromkeys(each for each in found if each is not None))


def _needed(prefix: str, database: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield commands, each with the name of the key or channel that it is about."""
    key, remote = f"{prefix}{_KEY}", f"{prefix}{_REMOTE.format(database=database)}"
    for name, *rest in _ON_A_KEY:
        yield f"keys {prefix}*", (name, key, *rest)
    yield f"keys {prefix}*", ("BLMPOP", "1", "1", key, "LEFT")
    yield f"keys {prefix}*", ("EVALSHA", "0" * 40, "1", key)
    yield f"keys {prefix}*", ("WATCH", key)
    yield f"channels {prefix}*", ("PUBLISH", f"{prefix}{_CHANNEL}", "1")
    yield f"channels {prefix}*", ("SUBSCRIBE", f"{prefix}{_CHANNEL}")
    yield f"channel {remote}", ("PSUBSCRIBE", remote)
    yield "", ("SCRIPT", "LOAD", "return 1")
    yield "", ("TIME",)


def _lack(connection: Any, place: str, command: tuple[str, ...]) -> str | None:
    """Return the command, or the place, to which the user has no right; None for any other answer of Redis."""
    connection.send_command(*command)
    try:
        connection.read_response()
    except ResponseError as error:
        if is_denied(error):
            return command[0] if "command" in str(error) else place
    return None
