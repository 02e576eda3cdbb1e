"""Decide whether a run may continue under another plan of its pipeline. Pure. In: two plans and the run's state. Out: the obstacles.

Nothing of a run is replayed: merged results stay, and steps that have not run may change freely. Only changes are forbidden that affect
which steps were merged and where their results are, or that do not fit what is open (ADR 37).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flujo_client.contract.run_state import RunPosition, RunState
from flujo_client.plan import kinds
from flujo_client.plan.plan_difference import Difference, differences

if TYPE_CHECKING:
    from flujo_client.plan.plan import Node, Nodes, Plan


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a run cannot continue under another plan: the rule, and what breaks it in words."""

    rule: str
    reason: str
    difference: Difference | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.reason


def compatible(old: Plan, new: Plan, state: RunState, *, mine: str | None = None) -> tuple[Obstacle, ...]:
    """Return what forbids a run to continue under another plan; nothing if it may.

    Args:
        old: the plan it uses.
        new: the plan it would use.
        state: the run's.
        mine: the attempt whose worker asks, which has not begun to run.
    """
    return tuple(_obstacles(old, new, state, mine))


def _obstacles(old: Plan, new: Plan, state: RunState, mine: str | None) -> Iterator[Obstacle]:
    for attempt in state.open_attempts:
        if attempt.status == "running" and attempt.key != mine:
            yield Obstacle("running", f"step '{attempt.step}' is running under the old code")
    where, changed = RunPosition(old, state), differences(old, new)
    for difference in changed:
        found = _forbids(difference, where, new)
        if found is not None:
            yield Obstacle(found[0], f"{difference}, {found[1]}", difference)
    if not any(each.effect == "structure" for each in changed):
        return
    for address in _coming(state):
        nodes, now = _nodes_at(old, address), _nodes_at(new, address)
        cursor = next(scope.cursor for scope in state.scopes if scope.address == address)
        if nodes is not None and now is not None and len(now) <= cursor < len(nodes):
            step = nodes[cursor].path
            yield Obstacle("nothing left", f"the run is at step '{step}', where the new code has no step")


def _forbids(difference: Difference, where: RunPosition, new: Plan) -> tuple[str, str] | None:
    """Return the rule that a difference breaks, and why in words."""
    if difference.effect == "option":
        return None
    if not difference.step:
        models = where.plan.context_model, new.context_model
        if (
            difference.aspect == "context_model" and None in models
        ):  # whether a context fits another model is seen when it is read
            return "context model", "and only one of the two plans has a context"
        return None
    for body, _ in difference.around[1:]:
        container = body.rpartition("/")[0]
        if container in where.open_containers and _kind_of(new, container) == kinds.CACHE.name:
            return "open cache", f"and '{container}' is open, whose result is cached under a key of the old code"
    position = where.position(difference)
    if position == "after":
        return None
    if difference.key is not None:
        return _forbids_key(difference, where, new, is_open=position == "at")
    return _forbids_before(difference, new) if position == "before" else _forbids_at(difference, where)


def _forbids_before(difference: Difference, new: Plan) -> tuple[str, str] | None:
    if difference.effect == "making":
        return None
    if difference.what == "added":
        return "merged step", "before the step that the run is at"
    if difference.what == "renamed":
        node = _node(new, f"{difference.step.rpartition('/')[0]}/{difference.new}".removeprefix("/"))
        reader = _reader(new, difference.new or "")
        if reader is not None:
            return "merged step", f"but was merged under its old name, and step '{reader}' names the new one"
        if node is not None and not node.bodies:
            return None
    return "merged step", "which has been merged"


def _forbids_at(difference: Difference, where: RunPosition) -> tuple[str, str] | None:
    stances = where.stance_at(difference)
    if "asked" in stances:
        return "open question", "and a question to a person is open there"
    return ("open step", "and the run is inside it") if "open" in stances else None


def _forbids_key(difference: Difference, where: RunPosition, new: Plan, *, is_open: bool) -> tuple[str, str] | None:
    """Judge a branch, path or state that came, went or was moved: fan-outs begin all of theirs, other containers one at a time."""
    if is_open and "open" not in where.stance_at(difference):
        return None
    if _kind_of(new, difference.step) in (kinds.PARALLEL.name, kinds.ROUTER.name):
        return ("open fan-out", "and its branches are open") if is_open else ("merged step", "which has been merged")
    has_begun = f"{difference.step}/{difference.key}" in where.stances
    return ("merged step", "which the run has begun") if has_begun and difference.what == "removed" else None


def _coming(state: RunState) -> set[str]:
    """Return the addresses of sequences whose step has merged nothing."""
    return {each.address for each in state.open_attempts if each.kind in ("step", "start")}


def _nodes_at(plan: Plan, address: str) -> Nodes | None:
    try:
        return plan.locate(address).nodes
    except KeyError:
        return None


def _kind_of(plan: Plan, path: str) -> str | None:
    node = _node(plan, path)
    return None if node is None else node.kind


def _node(plan: Plan, path: str) -> Node | None:
    nodes, parts, found = plan.nodes, path.split("/"), None
    try:
        for place in range(0, len(parts), 2):
            found = nodes.named(parts[place])
            nodes = found.bodies[parts[place + 1]] if place + 1 < len(parts) else nodes
    except KeyError:
        return None
    return found


def _reader(plan: Plan, name: str) -> str | None:
    """Return the first step whose texts or templates name another step, such as `steps.name`."""
    pattern = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
    for node in _walk(plan.nodes):
        if node.name != name and any(pattern.search(text) for text in _texts([node.traits, node.rules])):
            return node.path
    return None


def _walk(nodes: Nodes) -> Iterator[Node]:
    for node in nodes:
        yield node
        for body in node.bodies.values():
            yield from _walk(body)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
