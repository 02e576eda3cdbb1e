"""The entries that one attempt streams under one claim: bounded, and without secrets. They come on any thread, and one thread takes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from flujo_client.contract.stream import StreamKind
from flujo_worker.streams.shown import Entry, ShownEntries, merged, text_of

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
        """Return what waits, without secrets. Only the thread that writes calls it."""
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
        return [shown for entry in waiting for shown in self._shown.of(*entry)]

    def written(self, epoch: bytes | None) -> None:
        """Note the epoch of what was written; None: the claim is over."""
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
