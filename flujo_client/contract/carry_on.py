"""Decide whether a run may continue under another plan of its pipeline, by the run's state. Pure. In: two plans and the state. Out: obstacles.

Nothing of a run is replayed: merged results stay, and steps that have not run may change freely. Only changes are forbidden that affect
which steps were merged and where their results are, or that do not fit what is open (ADR 37).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from flujo_client.contract.records import LIVE_RUN, OPEN_ATTEMPT, SEQUENCE
from flujo_client.plan import kinds
from flujo_client.plan.plan import Node, Nodes, Plan
from flujo_client.plan.plan_difference import Difference, differences

Position = Literal["before", "at", "after"]
"""The place of a difference, relative to the run's present step."""


class ScopePlace(NamedTuple):
    """The state of one scope of a run; `cursor` is the place of the step that a sequence is at."""

    address: str
    kind: str
    status: str
    cursor: int
    version: int


class AttemptPlace(NamedTuple):
    """One attempt of a run, whether it has ended or not."""

    key: str
    address: str
    step: str
    number: int
    kind: str
    status: str
    fence: int


@dataclass(frozen=True, slots=True)
class RunState:
    """A run's state, as far as it decides whether it may continue under another plan."""

    run: str
    reference: str
    fingerprint: str
    status: str
    root: str
    """The address at which it begins: empty, or the address of a body for a child run."""
    queue: str
    """The queue of the steps that name no queue."""
    scopes: tuple[ScopePlace, ...] = ()
    """All scopes of the run, including closed ones, by address."""
    attempts: tuple[AttemptPlace, ...] = ()
    """All attempts of the run, by key."""

    @classmethod
    def of_row(cls, run: str, row: Mapping[str, Any]) -> RunState:
        """Read a row of `run_state.sql`."""
        scopes = tuple(ScopePlace(*each) for each in row["scopes"])
        attempts = tuple(AttemptPlace(*each) for each in row["attempts"])
        names = ("reference", "fingerprint", "status", "root", "queue")
        return cls(run, **{name: row[name] for name in names}, scopes=scopes, attempts=attempts)

    @property
    def has_ended(self) -> bool:
        return self.status not in LIVE_RUN

    @property
    def open_attempts(self) -> Iterator[AttemptPlace]:
        return (each for each in self.attempts if each.status in OPEN_ATTEMPT)


Stance = Literal["coming", "open", "asked", "closed"]
"""The state of a sequence at its step: it has merged nothing of it, has a container open there, waits for a person there, or has ended."""


class RunPosition:
    """The position of a run in its plan, by the paths of the bodies it has begun."""

    def __init__(self, plan: Plan, state: RunState) -> None:
        self.plan, self.stances = plan, dict[str, set[tuple[int, Stance]]]()
        self.open_containers: set[str] = set()
        asked = {each.address for each in state.open_attempts if each.kind == "resume"}
        containers = (each.address for each in state.scopes if each.status == "open" and each.kind != SEQUENCE)
        busy = {address.rpartition("/")[0] for address in containers}
        for scope in state.scopes:
            try:
                container, nodes, _ = plan.locate(scope.address)
            except KeyError:  # it closed before the run came under this plan, which has another name for it
                continue
            if scope.kind != SEQUENCE or nodes is None:
                if container is not None and scope.status == "open":
                    self.open_containers.add(container.path)
                continue
            stance: Stance = "open" if scope.address in busy else "asked" if scope.address in asked else "coming"
            if scope.status != "open":
                stance = "closed"
            place = len(nodes) if stance == "closed" else scope.cursor
            self.stances.setdefault(body_path(nodes), set()).add((place, stance))

    def position(self, difference: Difference) -> Position:
        """Return where a difference is, seen from the run: before what it is at, at it, or after. It has its context with it."""
        if not difference.step and difference.aspect.startswith("context"):
            return "at"
        for body, place in reversed(difference.around):
            stances = self.stances.get(body)
            if stances is None:
                continue
            is_own = body == difference.body
            if not is_own and self._has_begun_other_bodies(difference, body):
                return "after"
            found = {_position(difference if is_own else None, place, *each) for each in stances}
            return "before" if "before" in found else "at" if "at" in found else "after"
        return "after"

    def stance_at(self, difference: Difference) -> set[Stance]:
        """Return the stances of the sequences that are at the step that differs."""
        return {stance for place, stance in self.stances.get(difference.body, ()) if place == difference.place}

    def _has_begun_other_bodies(self, difference: Difference, body: str) -> bool:
        """Return whether the container in `body` that holds the difference has run bodies, none of which is the one that differs."""
        inner = difference.around[[path for path, _ in difference.around].index(body) + 1][0]
        container = inner.rpartition("/")[0] + "/"
        return any(path.startswith(container) for path in self.stances)


def _position(difference: Difference | None, place: int, at: int, stance: Stance) -> Position:
    """Return where `place` of a body is, relative to a sequence at `at`; without a `difference`, of something inside a step."""
    if place != at:
        return "before" if place < at else "after"
    if difference is None:
        return "after"
    if difference.what == "added" and difference.key is None and not difference.aspect:
        return "after" if stance == "coming" else "before"
    return "at"


def body_path(nodes: Nodes) -> str:
    """Return the path of the body that some nodes are; they are not empty."""
    return nodes[0].path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a run cannot continue under another plan: the rule, and what breaks it in words."""

    rule: str
    reason: str
    difference: Difference | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.reason


def compatible(old: Plan, new: Plan, state: RunState, *, mine: str | None = None) -> tuple[Obstacle, ...]:
    """Return the obstacles that forbid a run to continue under the new plan.

    `mine` is the attempt of the calling worker; it has not begun to run.
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
    # an open attempt has merged nothing of its step
    for address in {each.address for each in state.open_attempts if each.kind in ("step", "start")}:
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
        if difference.aspect == "context_model" and None in models:
            return "context model", "and only one of the two plans has a context"  # reading one shows whether it fits
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
        return "open question", "and a question to a person is open there, or an event awaited"
    return ("open step", "and the run is inside it") if "open" in stances else None


def _forbids_key(difference: Difference, where: RunPosition, new: Plan, *, is_open: bool) -> tuple[str, str] | None:
    """Judge a branch, path or state that came, went or was moved: fan-outs begin all of theirs, other containers one at a time."""
    if is_open and "open" not in where.stance_at(difference):
        return None
    if _kind_of(new, difference.step) in (kinds.PARALLEL.name, kinds.ROUTER.name):
        return ("open fan-out", "and its branches are open") if is_open else ("merged step", "which has been merged")
    has_begun = f"{difference.step}/{difference.key}" in where.stances
    return ("merged step", "which the run has begun") if has_begun and difference.what == "removed" else None


def _nodes_at(plan: Plan, address: str) -> Nodes | None:
    try:
        return plan.locate(address).nodes
    except KeyError:
        return None


def _kind_of(plan: Plan, path: str) -> str | None:
    node = _node(plan, path)
    return None if node is None else node.kind


def _node(plan: Plan, path: str) -> Node | None:
    return next((node for node in plan.nodes.walk() if node.path == path), None)


def _reader(plan: Plan, name: str) -> str | None:
    """Return the first step whose texts or templates name another step, such as `steps.name`."""
    pattern = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
    for node in plan.nodes.walk():
        if node.name != name and any(pattern.search(text) for text in _texts([node.traits, node.rules])):
            return node.path
    return None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
