"""V-SM: state machines. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from flujo_client.blueprint.finding import Path, nearest, shown
from flujo_client.blueprint.rules.document_index import DocumentIndex, StepNode
from flujo_client.blueprint.rules.table import RuleFinding


def of_machine(_: DocumentIndex, step: StepNode) -> Iterator[RuleFinding]:
    """Check a state machine."""
    states = dict.fromkeys(map(str, step.table("states")))
    ends = dict.fromkeys(each for each in _list(step, "end_states") if isinstance(each, str))
    given = step.data.get("start_state")
    start = given if isinstance(given, str) else None
    leads = list(_transitions(step))
    for index, (source, _on, target) in enumerate(leads):
        for key, name, more in (("from", source, {"*": None}), ("to", target, ends)):
            yield from _unknown(name, more if name in more else states, (*step.path, "transitions", index, key))
    yield from _unknown(start, states, (*step.path, "start_state"))
    if start not in states or any(target not in states and target not in ends for _, _, target in leads):
        return
    onward = {source for source, on, _ in leads if on != "failure"}
    reached = _reached(str(start), leads, ends)
    for name in states:
        if name not in reached:
            yield RuleFinding(
                "V-SM1", (*step.path, "states", name), f"no transition leads to '{shown(name)}'", severity="warning"
            )
        elif name not in ends and not {name, "*"} & onward:
            message = f"nothing leads on from '{shown(name)}' when it has succeeded, and it is not an end state"
            yield RuleFinding("V-SM1", (*step.path, "states", name), message, severity="warning")
    if ends and not reached & set(ends):
        yield RuleFinding("V-SM1", (*step.path, "end_states"), "no transition leads to any of them", severity="warning")


def _list(step: StepNode, key: str) -> list[Any]:
    found = step.data.get(key)
    return found if isinstance(found, list) else []


def _transitions(step: StepNode) -> Iterator[tuple[str, str, str]]:
    for each in _list(step, "transitions"):
        given = each if isinstance(each, dict) else {}
        yield str(given.get("from")), str(given.get("on", "success")), str(given.get("to"))


def _reached(start: str, leads: list[tuple[str, str, str]], ends: Collection[str]) -> set[str]:
    onward: dict[str, set[str]] = {}
    for source, _, target in leads:
        onward.setdefault(source, set()).add(target)
    found, row = {start}, [start]
    anywhere = onward.pop("*", set())
    while row:
        name = row.pop()
        following = set() if name in ends else onward.pop(name, set()) | anywhere
        anywhere = set() if name not in ends else anywhere
        row += following - found
        found |= following
    return found


def _unknown(name: Any, known: Collection[str], path: Path) -> Iterator[RuleFinding]:
    if name is not None and str(name) not in known:
        near = nearest(name, known)
        message = f"'{shown(name)}' is not a state"
        yield RuleFinding(
            "V-SM1", path, message, None if near else f"there are {', '.join(map(shown, list(known)[:20]))}", near
        )
