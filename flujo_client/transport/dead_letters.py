"""Messages that workers refused, stored in Redis: the last of them, each cut to a bounded size, and how many there were by reason.

Nothing reads them back into a queue. They are there for people; what was lost with a refused message, the sweeper sends again.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from flujo_client.serial.tree import storable_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flujo_client.transport.redis import Redis

LIST_KEY = "flujo:dead_letters"
COUNTS_KEY = "flujo:refused"
MAX_ENTRIES = 1000
MOST_BYTES = 2048

Reason = Literal["malformed", "too_large", "compressed", "foreign", "undecodable", "mismatched", "unknown_task", "unhandled"]  # fmt: skip
"""Why a message was refused.

- `malformed`: it is not a message, or Celery cannot read it
- `too_large`: larger than `limits.message_max_bytes` allows
- `compressed`: it would have to be unpacked before its signature is known
- `foreign`: it was not written by our serializer
- `undecodable`: it is not signed as agreed, or is damaged
- `mismatched`: its contents do not fit its task, its id, its chord or its run
- `unknown_task`: this worker has no such task
- `unhandled`: the consumer failed on it
"""


@dataclass(frozen=True, slots=True)
class Refused:
    """The messages that workers have refused since Redis was last emptied.

    Attributes:
        reasons: the count for each reason.
        kept: the number of stored messages, at most 1000.
        last_at: the time of the last refusal, in unix seconds.
        key: the Redis list they are in, newest first, or the queue in RabbitMQ.
    """

    reasons: Mapping[str, int]
    kept: int
    last_at: float | None
    key: str

    @property
    def count(self) -> int:
        """Return how many there were."""
        return sum(self.reasons.values())


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A refused message without its contents."""

    at: float
    """The time of its refusal, in unix seconds."""
    queue: str
    reason: str
    """Why it was refused, one of `Reason`."""
    detail: str
    """The reason in words."""
    bytes: int


class DeadLetters:
    """The list and the counts in one Redis database, under the broker's key prefix. Every method raises RedisError."""

    def __init__(self, client: Redis, prefix: str = "") -> None:
        self._redis, self._list, self._counts = client, prefix + LIST_KEY, prefix + COUNTS_KEY

    def add(self, reason: Reason, item: bytes, *, queue: str, detail: str = "") -> None:
        """Count a refused message and keep the beginning of it; the oldest one makes room."""
        pipe = self._redis.pipeline()
        pipe.lpush(self._list, write_letter(reason, item, queue=queue, detail=detail))
        pipe.ltrim(self._list, 0, MAX_ENTRIES - 1)
        pipe.hincrby(self._counts, reason, 1)
        pipe.execute()

    def refused(self) -> Refused:
        """Return how many were refused, and how many of them are stored."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.hgetall(self._counts)
        pipe.llen(self._list)
        pipe.lindex(self._list, 0)
        counts, kept, newest = pipe.execute()
        reasons = {name.decode(): int(count) for name, count in sorted(counts.items())}
        return Refused(reasons, kept, None if newest is None else float(json.loads(newest)["at"]), self._list)

    def newest(self, most: int) -> list[DeadLetter]:
        """Return the stored messages that were refused last, newest first, at most so many."""
        return [read_letter(json.loads(stored)) for stored in self._redis.lrange(self._list, 0, most - 1)]


def write_letter(reason: Reason, item: bytes, *, queue: str, detail: str) -> bytes:
    """Write a message that is refused now, cut to a bounded size."""
    letter = {
        "at": time.time(),
        "queue": queue,
        "reason": reason,
        "detail": detail[:MOST_BYTES],
        "bytes": len(item),
        "item": item[:MOST_BYTES].decode("utf-8", "backslashreplace"),
    }
    return json.dumps(letter).encode()


def read_letter(stored: Mapping[str, Any]) -> DeadLetter:
    """Read what `write_letter` wrote."""
    texts = {name: storable_text(str(stored[name])) for name in ("queue", "reason", "detail")}
    return DeadLetter(at=float(stored["at"]), bytes=int(stored["bytes"]), **texts)
