"""What one attempt streams, under one claim: batched and bounded.

In: entries, on any thread. Out: batches, for the thread that writes them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from flujo_client.contract.stream import StreamKind
from flujo_worker.streams.shown import Entry, ShownEntries, merged, text_of

EVERY_S: Final = 0.05
"""Seconds between two batches."""
BATCH_CHARS: Final = 2048
"""Characters of deltas at which a batch does not wait."""
MOST_WAITING: Final = 500
"""Entries that wait, beyond which further ones are dropped."""
MOST_CHARS: Final = 1_000_000
"""The same, in characters of deltas."""
PROGRESS_S: Final = 0.25
"""Seconds between two reports of progress."""
_LAST: Final = frozenset({"step_end", "withdrawn", "question"})
"""The kinds of an attempt's last entry, which is not dropped."""


class Batch(NamedTuple):
    """Entries that are written together."""

    writer: Writer
    entries: Sequence[Entry]


class Writer:
    """Streams one attempt. Safe for several threads.

    Args:
        run: its run.
        place: its step, as entries name it.
        number: which try it is.
        fence: of its claim.
        schedule: has the batch written at a time of the monotonic clock.

    Attributes:
        epoch: of the stream, at the last write.
        is_empty: it only claims the place, so that what was streamed there before is withdrawn.
    """

    is_empty = False

    def __init__(
        self, run: str, place: str, number: int, fence: int, schedule: Callable[[Writer, float], None]
    ) -> None:
        self.run, self.place, self.number, self.fence = run, place, number, fence
        self.epoch = ""
        self._schedule, self._lock, self._shown = schedule, threading.Lock(), ShownEntries()
        self._waiting: deque[Entry] = deque()
        self._chars, self._next_at, self._is_over, self._has_said = 0, 0.0, False, False
        self._progress: Mapping[str, Any] | None = None
        self._progress_at = 0.0

    def put(self, kind: StreamKind, data: Mapping[str, Any]) -> None:
        """Stream an entry. After the last one of the attempt, or of its claim, nothing is streamed."""
        with self._lock:
            if self._is_over:
                return
            if kind == "progress":
                self._progress, at = data, self._progress_at  # in place of an earlier one that waits
            else:
                at = self._add(kind, data)
        self._schedule(self, at)

    def _add(self, kind: StreamKind, data: Mapping[str, Any]) -> float:
        """Let an entry wait, or drop it; return when to write what waits."""
        self._is_over, text = kind in _LAST, text_of(data)
        one = merged(self._waiting[-1], (kind, data)) if text and self._waiting else None
        if one is not None:
            self._waiting[-1] = one
        elif self._is_over or (len(self._waiting) < MOST_WAITING and self._chars < MOST_CHARS):
            self._waiting.append((kind, data))
        elif self._waiting[-1][0] != "gap":
            self._waiting.append(("gap", {}))
        self._chars += len(text)
        if kind in ("step_start", "step_end"):  # with what others write then: a step may take a millisecond
            return time.monotonic() + EVERY_S
        return 0.0 if self._is_over or self._chars >= BATCH_CHARS else self._next_at

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
        self._schedule(self, 0.0)

    def take(self) -> Batch:
        """Return what waits, without secrets. Only the thread that writes calls it."""
        with self._lock:
            waiting, self._waiting, self._chars = self._waiting, deque(), 0
            now = time.monotonic()
            if self._progress is not None and (self._is_over or now >= self._progress_at):
                waiting.insert(len(waiting) - self._is_over, ("progress", self._progress))
                self._progress, self._progress_at = None, now + PROGRESS_S
            later = self._progress is not None
            if any(kind != "step_start" for kind, _ in waiting):  # the first token does not wait
                self._next_at = now + EVERY_S
        if later:
            self._schedule(self, self._progress_at)
        return Batch(self, [shown for entry in waiting for shown in self._shown.of(*entry)])

    def written(self, epoch: bytes | None) -> None:
        """Note the epoch of a batch that was written; None: the claim is over."""
        with self._lock:
            if epoch is None:
                self._is_over = True
                self._waiting.clear()
            else:
                self.epoch = epoch.decode()

    def lose(self, batch: Batch) -> None:
        """Note that a batch may not have been written: a `gap` takes its place. Its last entry is written again."""
        with self._lock:
            kept = [entry for entry in batch.entries[-1:] if entry[0] in _LAST]
            self._waiting.extendleft(reversed([("gap", {}), *kept]))
