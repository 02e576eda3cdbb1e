"""Show the output and logs of steps, and warnings about steps that block others, as lines that name the step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from flujo_client.address import AttemptKey
from flujo_client.contract.records import EventRecord

if TYPE_CHECKING:
    from flujo_client.api.handle import RunHandle

AT_ONCE: Final = 1000
_SENTENCES: Final = {
    "step.blocked_loop": "blocked the event loop of its worker, and all other steps there, in {place}: {advice}",
    "step.left_behind": "kept running after its timeout, in {place}: {advice}",
    "output.dropped": "printed and logged {bytes} bytes more than are stored",
}


def output_lines(events: Iterable[EventRecord]) -> Iterator[str]:
    """Write a line for each line that a step has printed or logged, in the order of the events."""
    for event in events:
        where = _place(event)
        for line in _text(event).splitlines():
            yield f"[{where}] {line}"


class StepOutputReader:
    """Reads what the steps of a run have printed and logged since it was read last.

    Args:
        run: which run.
    """

    def __init__(self, run: RunHandle) -> None:
        self._run, self._after = run, None

    _after: str | None

    def lines(self) -> Iterator[str]:
        """Return the new lines."""
        while events := self._run.events(self._after, AT_ONCE):
            self._after = events[-1].cursor
            yield from output_lines(events)
            if len(events) < AT_ONCE:
                return


def _place(event: EventRecord) -> str:
    if event.attempt is None:
        return "run"
    key = AttemptKey.parse(event.attempt)
    place = f"{key.address}/{key.step}" if key.address else key.step
    return place if key.number == 1 else f"{place}, attempt {key.number}"


def _text(event: EventRecord) -> str:
    data = event.data
    match event.name:
        case "step.printed":
            return str(data.get("text", ""))
        case "step.logged":
            line = f"{event.level.upper()} {data.get('logger')}: {data.get('message')}"
            return f"{line}\n{data['traceback']}" if "traceback" in data else line
        case name if name in _SENTENCES:
            parts = {key: data.get(key, "?") for key in ("place", "bytes", "advice")}
            return f"{event.level.upper()} {_SENTENCES[name].format(**parts)}"
        case _:
            return ""
