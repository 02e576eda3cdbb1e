"""A run's events as lines that rich can draw, by the rules of `render`: in words, legible at 80 columns. Pure."""

from __future__ import annotations

import shlex

from rich.table import Table
from rich.text import Text

from flujo_client.address import AttemptKey
from flujo_client.cli.format import cost, counted, duration, in_a_line, local_time, printable
from flujo_client.cli.render import happened
from flujo_client.contract.approval import Approval
from flujo_client.contract.records import EventRecord, RunRecord

OF_THE_RUN = "run."
_PLACE_WIDTH = 18


def event_line(event: EventRecord, preview: int) -> Table:
    """Draw an event: when (by this machine's time zone), at which step, and what happened; long places and values wrap in their columns."""
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(no_wrap=True)
    line.add_column(width=_PLACE_WIDTH, overflow="fold")
    line.add_column(overflow="fold")
    data = [(key, value) for key, value in event.data.items() if key != "step" and value is not None]
    line.add_row(
        Text(f"{event.at.astimezone():%H:%M:%S}", "dim"),
        Text(printable(_place(event))),
        happened(event.name, event.level, data, preview),
    )
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
    """Return a summary of a run in one line."""
    facts = [run.id, run.name, run.status]
    if run.ended_at is not None:
        facts.append(duration((run.ended_at - run.created_at).total_seconds()))
    facts += [counted(run.tokens, "token")] if run.tokens else []
    facts += [cost(run.cost_usd)] if run.cost_usd else []
    facts += [in_a_line(run.reason)] if run.reason else []
    facts += [f"waits at {in_a_line(run.waits_for)}"] if run.waits_for else []
    return "  ".join(facts)


def _place(event: EventRecord) -> str:
    """Return the place of an event: its step, with the address of its attempt if that is the same step's."""
    step = event.data.get("step")
    if event.attempt is None or (step is None and event.name.startswith(OF_THE_RUN)):
        return str(step or "")
    key = AttemptKey.parse(event.attempt)
    if step not in (None, key.step):
        return str(step)
    return f"{key.address}/{key.step}" if key.address else key.step


def _answers(schema: dict[str, object] | None) -> dict[str, str]:
    """Map the commands that answer a question to their arguments.

    A boolean, an object with `approved`, and a question without a schema accept yes or no.
    """
    verdict = {"approve": "", "reject": ""}
    if not schema:
        return {**verdict, "answer": " VALUE"}
    properties = schema.get("properties")
    if schema.get("type") == "boolean" or (isinstance(properties, dict) and "approved" in properties):
        return verdict
    return {"answer": " VALUE" if schema.get("type") == "string" else " --input-json JSON"}
