"""What a stop is, and the conditions of rows that tell that a run has come to one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

HTML = """<script>document.title = "owned"</script><img src=x onerror="document.title='owned'">"""
"""What would run if it were not shown as text."""
IMG = "<img src=x onerror=alert(1)>"
"""The same, as a step may be called."""

ENDED = "r.ended_at IS NOT NULL"
PARKED = "r.status = 'parked'"
WAITS_TO_BEGIN = "EXISTS (SELECT 1 FROM flujo_waiting_runs w WHERE w.run_id = r.id)"


def attempt(condition):
    """Whether one of the run's attempts has not ended, and meets a condition."""
    return f"EXISTS (SELECT 1 FROM flujo_attempts a WHERE a.run_id = r.id AND a.ended_at IS NULL AND {condition})"


def runs(step):
    return attempt(f"a.step = '{step}' AND a.status = 'running' AND a.started_at IS NOT NULL")


def waits_for(what):
    return attempt(f"a.waits_for = '{what}'")


ASKS = attempt("a.status = 'paused'")
CHILD_ASKS = (
    "EXISTS (SELECT 1 FROM flujo_runs c JOIN flujo_attempts a ON a.run_id = c.id"
    " WHERE c.parent_run = r.id AND a.status = 'paused')"
)
WAITS_IN_QUEUE = attempt("a.status IN ('ready', 'queued') AND a.step <> 'fetch'")
RETRIES_LATER = attempt("a.number > 1 AND a.available_at BETWEEN now() + interval '1 min' AND now() + interval '1 d'")


@dataclass(frozen=True)
class Stop:
    """A run, and the truth about where it stops.

    Attributes:
        start: a pipeline of `desk`, or a reference.
        cause: the name of the sentence's template.
        tone: who has to act.
        sentence: every word of it. `<text>` after a file is the line with that text, `<name>` another stop's run, `<at>` a time with its
            distance, `<took>` a duration that was measured, `<worker>` a worker.
        place: the attempt that it is about: address, step and number, `*` for any; empty if it is about the whole run.
        fix: what a person can do.
        acts: what may be done about it.
        moves_itself: whether a time is known at which it does.
        settled: what the rows of its run hold when it has stopped.
        value: the run's input.
        options: further options of `enqueue`.
        after: stops whose runs begin before it.
        begun: what its rows hold when `act` is due, and the stops that come after it; as `settled` if empty.
        act: what is done to the run, given the fleet and the run.
    """

    start: str
    cause: str
    tone: str
    sentence: str
    place: str = ""
    fix: str = ""
    acts: tuple[str, ...] = ("retry",)
    moves_itself: bool = False
    settled: str = ENDED
    value: Any = "A-7"
    options: Mapping[str, Any] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    begun: str = ""
    act: Callable[[Any, Any], None] | None = None

    @property
    def reference(self):
        return self.start if ":" in self.start else f"desk:{self.start}"
