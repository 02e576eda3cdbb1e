"""Write a run's events as lines, with the output and logs of its steps and its open questions; legible at 80 columns."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from rich.table import Table
from rich.text import Text

from flujo_client.address import AttemptKey, below
from flujo_client.api.handle import RunHandle
from flujo_client.cli.drawing import grid
from flujo_client.cli.format import cost, counted, duration, in_a_line, local_time, printable
from flujo_client.cli.render import happened
from flujo_client.contract.approval import Approval, verdict
from flujo_client.contract.records import EventRecord, RunRecord

OF_THE_RUN = "run."
_PLACE_WIDTH = 18
AT_ONCE: Final = 1000
_SENTENCES: Final = {
    "step.blocked_loop": "blocked the event loop of its worker, and all other steps there, in {place}: {advice}",
    "step.left_behind": "kept running after its timeout, in {place}: {advice}",
    "output.dropped": "printed and logged {bytes} bytes more than are stored",
}


def event_line(event: EventRecord, preview: int) -> Table:
    """Draw an event: when (by this machine's time zone), at which step, and what happened; long places and values wrap in their columns."""
    data = [(key, value) for key, value in event.data.items() if key != "step" and value is not None]
    at, place = Text(f"{event.at.astimezone():%H:%M:%S}", "dim"), Text(printable(_place(event)), overflow="fold")
    happening = happened(event.name, event.level, data, preview)
    happening.overflow = "fold"
    line = grid([(at, place, happening)])
    line.columns[0].no_wrap, line.columns[1].width = True, _PLACE_WIDTH
    return line


def question_lines(approval: Approval) -> Text:
    """Draw an open question, and the commands that answer it."""
    until = "" if approval.expires_at is None else f", open until {local_time(approval.expires_at)}"
    text = Text.assemble((f"{printable(approval.place)} asks{until}: ", "bold"), printable(approval.message))
    which = ["--step", approval.step, *(["--address", approval.address] if approval.address else [])]
    given = shlex.join([approval.run_id, *which])
    for verb, value in _answers(approval.schema).items():
        text.append(f"\n  flujo approvals {verb} {printable(given)}{value}")
    return text


def summary(run: RunRecord) -> str:
    facts = (
        *(run.id, run.name, run.status),
        run.ended_at and duration((run.ended_at - run.created_at).total_seconds()),
        run.tokens and counted(run.tokens, "token"),
        run.cost_usd and cost(run.cost_usd),
        run.reason and in_a_line(run.reason),
        run.waits_for and f"waits at {in_a_line(run.waits_for)}",
    )
    return "  ".join(str(fact) for fact in facts if fact)


def _place(event: EventRecord) -> str:
    """Return the place of an event: its step, with the address of its attempt if that is the same step's."""
    step = event.data.get("step")
    if event.attempt is None or (step is None and event.name.startswith(OF_THE_RUN)):
        return str(step or "")
    key = AttemptKey.parse(event.attempt)
    return below(key.address, key.step) if step in (None, key.step) else str(step)


def _answers(schema: dict[str, object] | None) -> dict[str, str]:
    """Map the commands that answer a question to their arguments.

    A boolean, an object with `approved`, a question without a schema, and calls of tools that wait accept yes or no.
    """
    either = {"approve": "", "reject": ""}
    if not schema:
        return {**either, "answer": " VALUE"}
    properties = schema.get("properties")
    if schema.get("type") == "boolean" or (isinstance(properties, dict) and "approved" in properties):
        return either
    if verdict(schema, approved=True) != {"approved": True}:
        return {**either, "answer": " --input-json JSON"}
    return {"answer": " VALUE" if schema.get("type") == "string" else " --input-json JSON"}


class StepOutputReader:
    """Reads what the steps of a run have printed and logged since it was read last."""

    _after: str | None = None

    def __init__(self, run: RunHandle) -> None:
        self._run = run

    def lines(self) -> Iterator[str]:
        """Yield each new line, in the order of the events, with its step."""
        while events := self._run.events(self._after, AT_ONCE):
            self._after = events[-1].cursor
            for event in events:
                yield from (f"[{_attempt(event)}] {line}" for line in _text(event).splitlines())
            if len(events) < AT_ONCE:
                return


def _attempt(event: EventRecord) -> str:
    if event.attempt is None:
        return "run"
    key = AttemptKey.parse(event.attempt)
    place = below(key.address, key.step)
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
