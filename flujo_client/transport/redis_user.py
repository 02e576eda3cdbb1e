"""What clients and workers may need to do in Redis, as the rules of an ACL user, and as commands that show what a user lacks.

Everything of ours lies under the settings' key prefix: queues, chords, breakers, the cache, and the channels of Celery's remote control.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flujo_client.transport.redis import ResponseError, is_denied

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


def rules(prefix: str, database: int) -> str:
    """Return the rules for ACL SETUSER: this key prefix and its channels, and no more commands than needed.

    A subscription to a pattern needs a rule with that very text: hence the channel of remote control in the database.
    """
    remote = f"{prefix}{_REMOTE.format(database=database)}"
    return f"resetkeys ~{prefix}* resetchannels &{prefix}* &{remote} {COMMANDS}"


def lacking(connection: Any, prefix: str, database: int) -> Sequence[str]:
    """Return what a user may not do of what is needed: names of commands, keys and channels. Nothing is done.

    The commands are queued in a transaction that is then discarded; Redis checks rights when it queues.

    Args:
        connection: one of redis-py's, for this alone.
        prefix: of keys and channels.
        database: its number.
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
    """Return the command, or the place, that the user has no right to; None if Redis answers anything else."""
    connection.send_command(*command)
    try:
        connection.read_response()
    except ResponseError as error:
        if is_denied(error):
            return command[0] if "command" in str(error) else place
    return None
