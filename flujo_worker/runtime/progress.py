"""`progress` and `stream_text`: a step's own code reports while it runs. Outside of attempts they do nothing."""

from __future__ import annotations

import math
from typing import Any

from flujo_worker.runtime.attempt_run import current_run


def progress(done: float, total: float | None = None, text: str = "") -> None:
    """Report how much of the attempt's work is done. It may be called at any rate, on any thread.

    A stream of the run gets the first report at once, then at most four per second, and always the last. Without a stream, the last is an
    event of the attempt, `step.progress`.

    Args:
        done: how much is done.
        total: how much there is; None if that is not known.
        text: what is being done.

    Raises:
        TypeError: `done` or `total` is not a number, or `text` is not a text.
        ValueError: a number is infinite or NaN.
    """
    for name, given in (("done", done), ("total", 0 if total is None else total)):
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise TypeError(f"progress(): `{name}` must be a number, got {given!r:.80}")
        if not math.isfinite(given):
            raise ValueError(f"progress(): `{name}` must be a finite number, got {given!r}")
    if not isinstance(text, str):
        raise TypeError(f"progress(): `text` must be a text, got {text!r:.80}")
    run = current_run()
    if run is None:
        return
    data: dict[str, Any] = {"done": done, "total": total, "text": text}
    run.progress = data
    if run.stream is not None:
        run.stream.put("progress", data)


def stream_text(text: str) -> None:
    """Stream a piece of the step's text, like an agent's tokens; raises TypeError for other values. Without a stream it does nothing."""
    if not isinstance(text, str):
        raise TypeError(f"stream_text() takes a text, got {text!r:.80}")
    run = current_run()
    if run is not None and run.stream is not None and text:
        run.stream.say(text)
