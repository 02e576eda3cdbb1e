"""The events of an attempt while it runs, and its output until that is an event: bounded in number and bytes.

It does not know where lines come from.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from flujo_client.contract.outcome import Event
from flujo_client.redact import redact, redact_tree
from flujo_client.sizes import MAX_STEP_OUTPUT_BYTES

MAX_EVENTS = 1000
_AT_ONCE = 4096
"""The maximum characters of the lines in one event."""
_printing = threading.Lock()
"""Threads of one attempt may print at once; printing is rare enough for one lock."""


class Story(list[Event]):
    """The events of an attempt.

    Attributes:
        on_output: takes each line that is printed and each record that is logged, for a stream; None: nobody does.
        is_aside: a line is being written to the log: its output does not belong to a step, and its log record is already an event.
    """

    on_output: Callable[[dict[str, Any]], object] | None = None
    is_aside = False
    _lines = _line = ""
    _output_bytes = _dropped_bytes = 0

    def keep(self, event: Event) -> None:
        """Add an event, after earlier output; events over the limit are only counted."""
        if self._lines:
            with _printing:
                self._flush()
        self._add(event)

    def withdraw(self, events: Sequence[Event]) -> None:
        """Remove events. Others may be added meanwhile."""
        gone = set(map(id, events))
        for place in range(len(self) - 1, -1, -1):
            if id(self[place]) in gone:
                del self[place]

    def print(self, text: str) -> list[str]:
        """Add printed text; return the lines that it has completed."""
        with _printing:
            *lines, self._line = f"{self._line}{text}".split("\n")
            if len(self._line) > MAX_STEP_OUTPUT_BYTES:
                lines, self._line = [*lines, self._line], ""
            for line in lines:
                self._take(line)
        return [line[:_AT_ONCE] for line in lines]

    def log(self, level: str, data: dict[str, Any]) -> None:
        """Add a record of the standard library's logging."""
        with _printing:
            self._flush()
            if self._has_room(sum(map(len, data.values()))):
                if self.on_output is not None:
                    self.on_output({**data, "level": level})
                self._add(Event("step.logged", redact_tree(data), level, time.time()))

    def all_events(self) -> tuple[Event, ...]:
        """Return all events, with the last output and the amount of output that was dropped."""
        if self._lines or self._line:
            with _printing:
                self._take(self._line)
                self._line = ""
                self._flush()
        if not self._dropped_bytes:
            return tuple(self)
        return (*self, Event("output.dropped", {"bytes": self._dropped_bytes}, "warning", time.time()))

    def _take(self, line: str) -> None:
        if line and self._has_room(len(line.encode("utf-8", "replace")) + 1):
            if self.on_output is not None:
                self.on_output({"text": f"{line}\n"})
            self._lines += f"{line}\n"
            if len(self._lines) > _AT_ONCE:
                self._flush()

    def _flush(self) -> None:
        if self._lines:
            text, self._lines = self._lines.rstrip("\n"), ""
            self._add(Event("step.printed", {"text": redact(text)}, "info", time.time()))

    def _has_room(self, size: int) -> bool:
        self._output_bytes += size
        if self._output_bytes <= MAX_STEP_OUTPUT_BYTES:
            return True
        self._dropped_bytes += size
        return False

    def _add(self, event: Event) -> None:
        if len(self) < MAX_EVENTS:
            self.append(event)
        elif len(self) == MAX_EVENTS:
            self.append(Event("events.dropped", {"count": 1}, "warning", time.time()))
        else:
            self[-1].data["count"] += 1
