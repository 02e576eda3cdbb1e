"""One thread of this process writes what its attempts stream to Redis, without secrets. No attempt waits: while Redis is away, entries are dropped."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from itertools import islice, takewhile
from typing import Any, Final

from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.stream import StreamKind, keys_of, pack_data, place_of
from flujo_client.errors import SerializationError
from flujo_client.serial import safe_serialize
from flujo_client.transport.redis import RedisError, connect
from flujo_worker.streams.shown import Entry, ShownEntries, merged, text_of

logger = logging.getLogger(__name__)

EVERY_S: Final = 0.05
"""Seconds between two writes, unless something is urgent."""
BEGIN_S: Final = 0.25
"""Seconds that the beginning of an attempt waits, so that a short step is written once."""
ANSWER_S: Final = 1.0
"""Seconds that Redis may take to answer."""
AWAY_S: Final = 1.0
"""Seconds that nothing is written after Redis did not answer."""
AT_ONCE: Final = 64
"""The most attempts in one write."""
MOST_DUE: Final = 10_000
"""Attempts that wait to be written at most, while Redis is away."""
LAST_S: Final = 1.0
"""Seconds that a closing process gives to the last entries."""

BATCH_CHARS: Final = 2048
"""Characters of deltas that do not wait for others."""
MOST_WAITING: Final = 500
"""Entries that wait, beyond which further ones are dropped."""
MOST_CHARS: Final = 1_000_000
"""The same, in characters of deltas."""
PROGRESS_S: Final = 0.25
"""Seconds between two reports of progress."""
_FRAME: Final = frozenset({"step_start", "step_end", "withdrawn"})
"""The kinds of entries that need not be written at once."""
_LAST: Final = frozenset({"step_end", "withdrawn", "question"})
"""The kinds of an attempt's last entry, which is not dropped."""


class Writer:
    """Streams one attempt: its try `number` at a `place` of a run, under a claim (`fence`; 0 for the question that it waits with). Safe for several threads.

    Attributes:
        epoch: of the stream, at the last write.
        is_urgent: its entries are written at once.
        only_begins: nothing but its beginning waits, which may wait longer.
        is_empty: it only claims the place, so that what was streamed there before is withdrawn.
    """

    is_empty = is_urgent = only_begins = False
    epoch = b""
    _shown: ShownEntries | None = None
    _progress: Mapping[str, Any] | None = None
    _progress_at = 0.0
    _chars = 0
    _is_over = _has_begun = _has_said = False

    def __init__(self, run: str, place: str, number: int, fence: int, schedule: Callable[[Writer], object]) -> None:
        self.run, self.place, self.number, self.fence = run, place, number, fence
        self._schedule, self._lock = schedule, threading.Lock()
        self._waiting: list[Entry] = []

    def put(self, kind: StreamKind, data: Mapping[str, Any]) -> None:
        """Stream an entry. After the last one of the attempt, or of its claim, nothing is streamed."""
        with self._lock:
            if self._is_over:
                return
            self.only_begins = kind == "step_start" and not self._waiting
            is_first = kind not in _FRAME and not self._has_begun
            self._has_begun = self._has_begun or is_first
            if kind == "progress":
                self._progress = data  # in place of an earlier one that waits
            else:
                self._add(kind, data)
            if is_first or kind == "question" or self._chars >= BATCH_CHARS:
                self.is_urgent = True
        self._schedule(self)

    def _add(self, kind: StreamKind, data: Mapping[str, Any]) -> None:
        """Let an entry wait, or drop it."""
        self._is_over, text = kind in _LAST, text_of(data)
        one = merged(self._waiting[-1], (kind, data)) if text and self._waiting else None
        if one is not None:
            self._waiting[-1] = one
        elif self._is_over or (len(self._waiting) < MOST_WAITING and self._chars < MOST_CHARS):
            self._waiting.append((kind, data))
        elif self._waiting[-1][0] != "gap":
            self._waiting.append(("gap", {}))
        self._chars += len(text)

    def say(self, text: str) -> None:
        """Stream a text of the step's own."""
        with self._lock:
            is_first, self._has_said = not self._has_said, True
        if is_first:
            self.put("token", {"index": 0, "part": {"content": text, "part_kind": "text"}, "event_kind": "part_start"})
        else:
            delta = {"content_delta": text, "part_delta_kind": "text"}
            self.put("token", {"index": 0, "delta": delta, "event_kind": "part_delta"})

    def claim(self) -> None:
        """Claim the place without an entry."""
        self.is_empty = True
        self._schedule(self)

    def take(self) -> Sequence[Entry]:
        """Return the waiting entries, without secrets. Only the writing thread calls it."""
        with self._lock:
            waiting, self._waiting, self._chars, self.is_urgent = self._waiting, [], 0, False
            now = time.monotonic()
            if self._progress is not None and (self._is_over or now >= self._progress_at):
                waiting.insert(len(waiting) - self._is_over, ("progress", self._progress))
                self._progress, self._progress_at = None, now + PROGRESS_S
            is_left = self._progress is not None
        if is_left:
            self._schedule(self)
        if self._shown is None and not any(data for _, data in waiting):
            return waiting
        self._shown = self._shown or ShownEntries()
        return [shown for entry in waiting for shown in self._shown.prepare(*entry)]

    def written(self, epoch: bytes | None) -> None:
        """Note the epoch of the last write; None: the claim is over."""
        if epoch is not None:
            self.epoch = epoch
            return
        with self._lock:
            self._is_over = True
            self._waiting.clear()

    def lose(self, entries: Sequence[Entry]) -> None:
        """Note that entries may not have been written: a `gap` takes their place. An attempt's last entry is written again."""
        with self._lock:
            kept = [entry for entry in entries[-1:] if entry[0] in _LAST]
            self._waiting[:0] = [("gap", {}), *kept]
        self._schedule(self)


Batch = tuple[Writer, Sequence[Entry]]


class StreamWriters:
    """Writes the entries of all attempts: one call of one script for many runs. Safe for several threads."""

    def __init__(self, settings: Settings) -> None:
        self._prefix, own = settings.broker_key_prefix, settings.streams
        self._bounds = own.max_entries, round(own.expire_s * 1000)
        self._redis = connect(settings.redis(), settings.sentinel_options(), patience_s=ANSWER_S, most=2)
        script = files("flujo_worker.streams").joinpath("write.lua").read_text(encoding="utf-8")
        self._script = self._redis.register_script(script)
        self._due: dict[Writer, float] = {}
        self._begun: dict[Writer, float] = {}
        """`_due` has the attempts to write, in order; `_begun` those that have only begun, with the time until which that waits."""
        self._lock, self._is_urgent = threading.Lock(), False
        self._changed, self._next_at, self._wakes_at = threading.Condition(self._lock), 0.0, 0.0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def writer(self, envelope: Envelope, fence: int) -> Writer:
        """Return the writer of one attempt under one claim."""
        place = place_of(envelope.address, envelope.step)
        return Writer(envelope.ticket.run, place, envelope.number, fence, self._schedule)

    def withdraw(self, envelope: Envelope, fence: int) -> None:
        """Withdraw an attempt's entries under claims before this one."""
        self.writer(envelope, fence).claim()

    def close(self) -> None:
        """Write the remaining entries, if that is quick, and end the thread."""
        with self._lock:
            self._closing.set()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(LAST_S)
        self._redis.connection_pool.disconnect()

    def _schedule(self, writer: Writer) -> None:
        """Write a writer's entries with all others: at once if it is urgent, else when it is time."""
        if writer in self._due and not writer.is_urgent:
            return
        with self._lock:
            begun_until = self._begun.pop(writer, None)
            if begun_until is None and writer not in self._due and len(self._due) + len(self._begun) >= MOST_DUE:
                return
            if writer.only_begins:
                at = self._begun[writer] = time.monotonic() + BEGIN_S
            else:
                at = self._due[writer] = 0.0 if writer.is_urgent else self._next_at
            self._is_urgent = self._is_urgent or writer.is_urgent
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="flujo-streams", daemon=True)
                self._thread.start()
            if at < self._wakes_at:
                self._wakes_at = at
                self._changed.notify()

    def _work(self) -> None:
        while due := self._wait():
            try:
                self._write([(each, entries) for each in due if (entries := each.take()) or each.is_empty])
            except Exception:
                logger.exception("entries of streams are lost")
                for writer in due:
                    writer.put("gap", {})

    def _wait(self) -> Sequence[Writer]:
        """Wait until there is something to write, and return its writers; none when this process closes."""
        with self._lock:
            while not self._closing.is_set():
                now = time.monotonic()
                self._let_begin(now)
                if self._due and (self._is_urgent or now >= self._next_at):
                    break
                at = self._wakes_at = self._next_at if self._due else next(iter(self._begun.values()), math.inf)
                self._changed.wait(None if math.isinf(at) else at - now)
            else:
                self._let_begin(math.inf)
            self._wakes_at = 0.0
            due = [*islice(self._due, AT_ONCE)]
            for writer in due:
                del self._due[writer]
            if not self._due:
                self._is_urgent, self._next_at = False, time.monotonic() + EVERY_S
            return due

    def _let_begin(self, now: float) -> None:
        """Make attempts due whose beginning has waited long enough."""
        for writer in [*takewhile(lambda each: self._begun[each] <= now, self._begun)]:
            self._due[writer] = self._begun.pop(writer)

    def _write(self, batches: Sequence[Batch]) -> None:
        if not batches:
            return
        try:
            epochs = self._append(batches)
        except RedisError as error:
            logger.warning("the streams of %s attempts are not written: %s", len(batches), error)
            if not self._closing.is_set():
                for writer, entries in batches:
                    writer.lose(entries)
            self._closing.wait(AWAY_S)
        else:
            for (writer, _), epoch in zip(batches, epochs, strict=True):
                writer.written(epoch)

    def _append(self, batches: Sequence[Batch]) -> Sequence[bytes | None]:
        """Append each batch to its stream; return the epochs, None where the claim is over."""
        keys: list[str] = []
        values: list[int | bytes] = [*self._bounds]
        for writer, entries in batches:
            keys += keys_of(self._prefix, writer.run)
            values += claim_of(writer.place, writer.number, writer.fence, writer.epoch, entries)
        epochs: Sequence[bytes | None] = self._script(keys, values)
        return epochs


def claim_of(place: str, number: int, fence: int, epoch: bytes, entries: Sequence[Entry]) -> list[bytes]:
    """Return the arguments of `write.lua` for a claim."""
    kinds = "".join([f"{kind}+," if data else f"{kind}," for kind, data in entries])
    head = f"{number} {fence} {epoch.decode() or 0} {kinds} {place}"
    return [head.encode(), *[_packed(data) for _, data in entries if data]]


def _packed(data: Mapping[str, Any]) -> bytes:
    """Pack data; data that cannot be stored are packed as events show them."""
    try:
        return pack_data(data)
    except SerializationError:
        return pack_data(safe_serialize(data))
