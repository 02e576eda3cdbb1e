"""Read streams from Redis: one connection and one thread for each process and broker, for all readers there.

A reader has a bounded buffer. While that is full, nothing is read for it; its next entries are read again later, from where it stopped.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from flujo_client.contract.stream import BEGINNING, Cursor
from flujo_client.transport.redis import RedisError, connect

if TYPE_CHECKING:
    from flujo_client.config.manager import Settings
    from flujo_client.transport.redis import Redis

logger = logging.getLogger(__name__)

BLOCK_S: Final = 0.05
"""Seconds that Redis waits for entries: a new reader joins that late at most."""
BATCH: Final = 500
"""Entries of a stream that are read at once."""
FULL: Final = 1000
"""Entries that a reader's buffer is filled up to, and no more than a batch beyond."""
ANSWER_S: Final = 2.0
RETRY_S: Final = 0.25
LINGER_S: Final = 5.0
"""Seconds that the connection stays open after the last reader."""

Entry = tuple[bytes, Mapping[bytes, bytes]]
Standing = Literal["level", "behind", "ahead", "gone", "away"]
"""The position of a reader: at the end of its stream, before it, or beyond it. `gone`: the stream does not exist; `away`: Redis does not answer."""


class StreamLook(NamedTuple):
    """The answer to `Feed.look`: the reader's standing, the last entry, and the claims of the stream's places if they were requested."""

    standing: Standing
    last: Cursor = BEGINNING
    claims: Mapping[bytes, bytes] | None = None


class Feed:
    """The buffer of one reader of a stream.

    Args:
        keys: the keys in Redis of the stream and of its claims.
        at: the cursor of the last entry that the reader has; later, of the last one that was put into the buffer.
    """

    def __init__(self, keys: tuple[str, str], at: Cursor) -> None:
        self.stream, self.claims = keys
        self.at, self._wants = at, ""
        self._entries: deque[Entry] = deque()
        self._look: StreamLook | None = None
        self._lock = threading.Lock()
        self._wake: Callable[[], object] | None = None
        self._is_due = False

    @property
    def has_room(self) -> bool:
        """Return whether the reader can be given more."""
        return len(self._entries) < FULL

    def look(self, *, with_claims: bool = False) -> None:
        """Request the reader's standing; `take` returns it."""
        with self._lock:
            self._wants = "claims" if with_claims else self._wants or "last"

    def asked(self) -> str:
        """Return what the reader has requested since the last call: `last`, `claims`, or nothing."""
        with self._lock:
            wants, self._wants = self._wants, ""
            return wants

    def take(self) -> tuple[Sequence[Entry], StreamLook | None]:
        """Return the entries that have come, or if there are none, the answer to `look`."""
        with self._lock:
            self._is_due = False
            if self._entries:
                entries, self._entries = self._entries, deque()
                return entries, None
            look, self._look = self._look, None
            return (), look

    def restart(self, at: Cursor) -> None:
        """Go on behind another entry."""
        with self._lock:
            self.at, self._look = at, None
            self._entries.clear()

    def rouse(self) -> None:
        """Wake the reader."""
        with self._lock:
            self._is_due, wake = True, self._wake
        if wake is not None:
            wake()

    @contextmanager
    def listening(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` once there is something to take, or the reader was roused."""
        with self._lock:
            self._wake = wake
            is_due = self._is_due or bool(self._entries) or self._look is not None
        if is_due:
            wake()
        try:
            yield
        finally:
            with self._lock:
                self._wake = None

    def give(self, entries: Sequence[tuple[Cursor, Entry]]) -> None:
        """Add the entries that the reader does not have."""
        with self._lock:
            fresh = [(cursor, entry) for cursor, entry in entries if cursor > self.at] if self.has_room else []
            if fresh:
                self.at = fresh[-1][0]
                self._entries.extend(entry for _, entry in fresh)
        if fresh:
            self.rouse()

    def answer(self, last: Cursor | None, claims: Mapping[bytes, bytes] | None) -> None:
        """Answer `look` by the last entry in Redis; None if there is none."""
        with self._lock:
            if last is None:
                standing: Standing = "level" if self.at == BEGINNING else "gone"
            else:
                standing = "level" if last == self.at else "behind" if last > self.at else "ahead"
            self._look = StreamLook(standing, last or BEGINNING, claims)
        self.rouse()

    def answer_away(self) -> None:
        """Answer `look`: Redis does not answer."""
        with self._lock:
            self._look = StreamLook("away")
        self.rouse()


class StreamHub:
    """Feed the readers of one Redis. Its thread and its only connection live while there are readers, and a little longer."""

    def __init__(self, connecting: Callable[[], Redis]) -> None:
        self._connect, self._lock = connecting, threading.Lock()
        self._feeds: set[Feed] = set()
        self._thread: threading.Thread | None = None

    @contextmanager
    def feeding(self, feed: Feed) -> Iterator[None]:
        """Feed a reader."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="flujo-streams", daemon=True)
                thread.start()
                self._thread = thread
            self._feeds.add(feed)
        try:
            yield
        finally:
            with self._lock:
                self._feeds.discard(feed)

    def _run(self) -> None:
        is_away = False
        while True:
            try:
                with closing(self._connect()) as redis:
                    redis.ping()
                    is_away = False
                    self._serve(redis)
            except RedisError as error:
                if not is_away:
                    logger.warning("streams wait for Redis: %s", error)
                is_away = True
            except Exception:  # without this thread every reader would wait for ever
                logger.exception("reading streams failed")
            with self._lock:
                if not self._feeds:
                    self._thread = None
                    return
                feeds = list(self._feeds)
            for feed in feeds:
                if feed.asked():
                    feed.answer_away()
            time.sleep(RETRY_S)

    def _serve(self, redis: Redis) -> None:
        """Feed readers until there have been none for a while."""
        needed_at = time.monotonic()
        while True:
            with self._lock:
                feeds = list(self._feeds)
            if feeds:
                needed_at = time.monotonic()
            elif time.monotonic() - needed_at >= LINGER_S:
                return
            _look(redis, feeds)
            if not _read(redis, feeds):
                time.sleep(BLOCK_S)


def _read(redis: Redis, feeds: Sequence[Feed]) -> bool:
    """Read the next entries of readers with room, and wait for them a moment; return whether there is such a reader."""
    readers: dict[str, list[Feed]] = {}
    for feed in feeds:
        if feed.has_room:
            readers.setdefault(feed.stream, []).append(feed)
    if not readers:
        return False
    places: Any = {stream: str(min(feed.at for feed in those)) for stream, those in readers.items()}
    found: Any = redis.xread(places, count=BATCH, block=int(BLOCK_S * 1000))
    for stream, entries in found.items() if isinstance(found, dict) else found:
        read = [(Cursor.parse(entry[0].decode()), entry) for entry in entries]
        for feed in readers[stream.decode()]:
            feed.give(read)
    return True


def _look(redis: Redis, feeds: Sequence[Feed]) -> None:
    """Answer the readers that have called `look`."""
    asking = {feed: wants for feed in feeds if (wants := feed.asked())}
    if not asking:
        return
    pipe = redis.pipeline(transaction=False)
    for feed, wants in asking.items():
        pipe.xrevrange(feed.stream, count=1)
        if wants == "claims":
            pipe.hgetall(feed.claims)
    try:
        answers: Iterator[Any] = iter(pipe.execute())
    except RedisError:
        for feed in asking:
            feed.answer_away()
        raise
    for feed, wants in asking.items():
        last, claims = next(answers), next(answers) if wants == "claims" else None
        feed.answer(Cursor.parse(last[0][0].decode()) if last else None, claims)


_hubs: dict[tuple[str, str], StreamHub] = {}


def hub_of(settings: Settings) -> StreamHub:
    """Return the hub of this process for a project's Redis."""
    url, sentinel = settings.redis(), settings.sentinel_options()
    known = (url, repr(sentinel))
    return _hubs.get(known) or _hubs.setdefault(
        known, StreamHub(lambda: connect(url, sentinel, patience_s=ANSWER_S, most=1))
    )


os.register_at_fork(after_in_child=_hubs.clear)
