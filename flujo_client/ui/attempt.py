"""One attempt, with all that was stored of it: its error, what its model was sent and answered, its tools, and what it logged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final

from flujo_client.address import below
from flujo_client.contract.outcome import Fault
from flujo_client.contract.rows import fault_of
from flujo_client.contract.trace import MODEL_TEXTS
from flujo_client.gateway.requests import Request, Row
from flujo_client.patterns import compiled
from flujo_client.plan.plan import Node
from flujo_client.tracebacks import INSTALLED
from flujo_client.ui.reading import HOME, SHOWN, WITHOUT_SORTS, ShownValue, ValueReader, written
from flujo_client.ui.tree import TreeReader, keys_at, tone_of

EVENTS: Final = 300
_VALUES: Final = ("input", "output", "answer", "error")
_PREVIEW: Final = compiled(r"preview$|^variables$|^conversions$")
_SENT: Final = ("agent.system", "agent.prompt", "agent.schema")
_LOGS: Final = ("step.printed", "step.logged", "step.blocked_loop", "step.left_behind", "output.dropped")
_OURS: Final = compiled(
    r"(?:agent|agent_tool|aros|attempt|background|child_run|code|context|fan_out|flujo|grammar|hook|join|loop|outcome|output"
    r"|reasoning|router|run|step|template)\."
)
"""The beginnings of the names of our own events."""
_PIECE: Final = compiled(r""" "(?:[^"\\]|\\.)*+" | '[^'\n]*+' | [\w.+-]++ | \s++ | . """, re.DOTALL | re.VERBOSE)
_PIECES: Final = 1500
"""Texts of more pieces are not compared: that would take too long."""
_OF_CALL: Final = (
    *(("name", "function"), ("given", "arguments_preview"), ("result", "result_preview")),
    *(("error", "error"), ("took_s", "latency_s")),
)
_LIBRARY: Final = (*INSTALLED, "/lib/python")
_SHORT: Final = compiled(r'File "[^"]*?([^/"]+/)?([^/"]+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt, its values as they are shown."""

    facts: Row
    most: int
    """How often its step may be tried."""
    fault: Fault | None
    siblings: Sequence[Row]
    input: ShownValue | None
    input_is: str
    output: ShownValue | None
    answer: ShownValue | None
    """The raw answer that was refused or repaired."""
    difference: Sequence[tuple[str, str]]
    """The raw answer against what was accepted: pieces that are `same`, `del` or `ins`."""
    repairs: Sequence[str]
    prompts: Sequence[tuple[str, ShownValue]]
    tools: Sequence[Row]
    logs: Sequence[Row]
    events: Sequence[Row]

    @property
    def tone(self) -> str:
        """Return who has to act."""
        return tone_of(self.facts["status"])

    @property
    def waited_s(self) -> float | None:
        """Return the seconds before its worker began."""
        began = self.facts["started_at"] or self.facts["ended_at"]
        return None if began is None else max(0.0, (began - self.facts["created_at"]).total_seconds())

    @property
    def place(self) -> str:
        return below(self.facts["address"], self.facts["step"])

    @property
    def traceback(self) -> list[tuple[str, str]]:
        """Return the lines of its traceback: of the user's `own` files, or of a `lib`; without folders."""
        lines: list[tuple[str, str]] = []
        whose = "own"
        for line in self.fault.traceback.rstrip().splitlines() if self.fault else ():
            if line.lstrip().startswith('File "'):
                whose = "lib" if any(part in line for part in _LIBRARY) else "own"
                line = _SHORT.sub(r'File "\2"' if whose == "own" else r'File "…/\1\2"', line, count=1)  # noqa: PLW2901
            elif not line.startswith(" "):
                whose = "own"
            lines.append((whose, line))
        return lines


def read_attempt(tree: TreeReader, values: ValueReader, key: str) -> Attempt | None:
    run = tree.run["id"]
    found = values.reading.rows("attempt", run=run, key=key)
    if not found:
        return None
    row = found[0]
    events = story(values, run, key, EVENTS)[::-1]
    done = [each["data"] for each in events if each["name"] == "output.coercion.success"]
    nodes = tree.nodes_at(row["address"])
    node = next((each for each in nodes if each.name == row["step"]), None)
    siblings = tree.attempts([(row["address"], node)]).get((row["address"], row["step"]), []) if node else []
    given, input_is = _input(tree, values, row, nodes)
    raw = row["answer"] or next((each["patch_preview"]["before"] for each in done if "patch_preview" in each), None)
    output = values.value(row["output"])
    accepted = output or _accepted(values, run, siblings)
    return Attempt(
        facts={name: value for name, value in row.items() if name not in _VALUES},
        most=node.max_attempts if node else 1,
        fault=_fault(row["error"]),
        siblings=siblings,
        input=given,
        input_is=input_is,
        output=output,
        answer=values.text(raw),
        difference=differences(raw, _in_a_line(accepted.text)) if raw and accepted and values.shows else (),
        repairs=[name for each in done for name in each.get("transforms") or ()],
        prompts=list(_prompts(events, values)),
        tools=_tools(events) if values.shows else (),
        logs=list(_logs(events)),
        events=events,
    )


def story(values: ValueReader, run: str, key: str | None, most: int) -> list[Row]:
    """Read the newest events of a run, or of one of its attempts, without the values that this user may not see."""
    given = {"run": run, "attempt": key, "most": most}
    events = values.reading.ask(Request("run_story", given, list, home=HOME, bounds=WITHOUT_SORTS))
    for event in events:
        data = event["data"] if isinstance(event["data"], dict) else {"unreadable": "its data is not an object"}
        if not values.shows:
            hidden = ("message", "text") if "message" in data else ()
            data = {name: each for name, each in data.items() if name not in hidden and not _PREVIEW.search(name)}
        event["data"] = data
    return events


def _input(tree: TreeReader, values: ValueReader, row: Row, nodes: Sequence[Node]) -> tuple[ShownValue | None, str]:
    """Return what an attempt began with, and what that is: no row holds it, unless the attempt failed."""
    if row["input"] is not None:
        return values.value(row["input"]), "Input"
    names = [each.name for each in nodes]
    place = names.index(row["step"]) if row["step"] in names else 0
    before = nodes[place - 1] if place else None
    is_first = not place and row["address"] == tree.run["root"]
    keys = keys_at(tree.run["id"], row["address"], before, EVENTS) if before else []
    scope = below(row["address"], before.name) if before else None
    found = values.reading.rows("attempt_input", run=tree.run["id"], before=keys, scope=scope, is_first=is_first)
    if not found:
        return None, ""
    return values.value(found[0]["body"]), f"Input: the output of {before.name}" if before else "Input of the run"


def _accepted(values: ValueReader, run: str, siblings: Sequence[Row]) -> ShownValue | None:
    if not siblings or siblings[-1]["status"] != "succeeded":
        return None
    return values.value(values.reading.rows("run_values", run=run, key=siblings[-1]["key"])[0]["output"])


def _fault(tree: Any) -> Fault | None:
    try:
        return fault_of(tree)
    except (TypeError, ValueError) as error:
        text = f"This row is damaged: error {error}"
        return Fault(category="system", type_name="UnreadableRow", message=text, feedback=text)


def _prompts(events: Iterable[Row], values: ValueReader) -> Iterator[tuple[str, ShownValue]]:
    for event in events:
        if event["name"] in _SENT:
            title, name = MODEL_TEXTS[event["name"]]
            text = values.text(event["data"].get(name))
            if text is not None:
                yield title.capitalize(), text


def _tools(events: Iterable[Row]) -> list[Row]:
    """Return the calls of tools: of functions in one event, of agents in one for the call and one for its end."""
    calls: dict[str, Row] = {}
    for number, event in enumerate(events):
        data, (kind, _, what) = event["data"], event["name"].partition(".")
        if event["name"] == "agent.tool":
            calls[f"function {number}"] = {name: data.get(key) for name, key in _OF_CALL}
        elif kind == "agent_tool" and what in ("called", "returned", "raised"):
            call = calls.setdefault(str(data.get("tool_call")), dict.fromkeys(("given", "result", "error", "took_s")))
            call |= {"name": data.get("tool"), "error": data.get("error")}
            call["took_s"] = data.get("latency_ms", 0) / 1000 if what != "called" else None
    return list(calls.values())


def _logs(events: Iterable[Row]) -> Iterator[Row]:
    for event in events:
        name, data = event["name"], event["data"]
        if name in _LOGS or not _OURS.match(name):
            text = data.get("text" if name == "step.printed" else "message")
            if text is None:
                text = f"{name} {written(data)}" if data else name
            text = f"{text}\n{data['traceback']}" if "traceback" in data else str(text)
            yield {"at": event["at"], "level": event["level"], "text": text}


def _in_a_line(text: str) -> str:
    """Write JSON as models write it; any other text as it is."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError:
        return text


def differences(before: str, after: str) -> list[tuple[str, str]]:
    """Compare two texts, of which a quoted part is one piece; none if they are too long for that."""
    old, new = (_PIECE.findall(each) for each in (before[:SHOWN], after))
    if max(len(old), len(new)) > _PIECES:
        return []
    pieces: list[tuple[str, str]] = []
    for kind, i, j, m, n in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            pieces.append(("same", "".join(old[i:j])))
        else:
            pieces += [(tag, text) for tag, text in (("del", "".join(old[i:j])), ("ins", "".join(new[m:n]))) if text]
    return pieces
