"""Print what a run's steps say while they say it: text on stdout; which step it is of, and what is void of it, on stderr."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from flujo_client.api.handle import RunHandle
from flujo_client.cli.output import say, show_piece
from flujo_client.contract.stream import StreamEvent, place_of
from flujo_client.errors import FlujoError

LAST_S: Final = 10.0
"""Seconds that the last text may take to come after the run's end."""


class SpokenText:
    """Prints the texts of a stream; whether the last one is a whole output is known by `text`."""

    def __init__(self) -> None:
        self._place, self.text = "", ""

    def take(self, events: Iterable[StreamEvent]) -> None:
        for event in events:
            place = place_of(event.address, event.step)
            if event.text:
                if place != self._place:
                    self.end_line()
                    say(f"[{place.removeprefix(':')}]")
                    self._place = place
                self.text += event.text
                show_piece(event.text)
            elif event.kind == "gap" or (event.kind == "withdrawn" and place == self._place):
                self.end_line()
                say(
                    "some text is lost"
                    if event.kind == "gap"
                    else "this text is void: its attempt failed, or its worker is gone"
                )
        self.end_line(is_kept=True)

    def end_line(self, *, is_kept: bool = False) -> None:
        if self.text and not self.text.endswith("\n"):
            show_piece("\n")
        self._place, self.text = "", self.text if is_kept else ""


def is_printed(output: object, text: str | None) -> bool:
    """Return whether a printed text is the output, apart from leading and trailing space."""
    return isinstance(output, str) and text is not None and output.strip() == text.strip()


class Speaker:
    """Prints what a streamed run says, on a thread of its own, from `start` to its end."""

    def __init__(self, run: RunHandle) -> None:
        self._spoken, self._run = SpokenText(), run
        self._thread = threading.Thread(target=self._speak, name="flujo-speaker", daemon=True)
        self._thread.start()

    def finish(self) -> str:
        """Wait until all is printed, and return the text that was said last."""
        self._thread.join(LAST_S)
        return self._spoken.text

    def break_off(self) -> None:
        """End the line that is begun, for a message that is no part of the text."""
        self._spoken.end_line()

    def _speak(self) -> None:
        try:
            self._spoken.take(self._run.stream())
        except FlujoError as error:  # such as of a run that was enqueued before, without a stream
            say(str(error))
