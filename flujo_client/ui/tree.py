"""The steps of a run as a tree: only what is shown is read, however many attempts the run has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from typing import Any, Final

from flujo_client.address import AttemptKey, below
from flujo_client.gateway.requests import Row
from flujo_client.plan.kinds import STEP
from flujo_client.plan.plan import Node, Nodes, Plan
from flujo_client.ui.reading import PageReads

PAGE: Final = 50
"""The children of a container that are shown at once."""
BUCKETS: Final = 60
"""The parts of the time for which it is counted how many children of a fan-out ran at once."""
HELD: Final = "held"
"""The state of children that never began; of a live run, of those to come."""
_STATES: Final = {
    "failed": ("bad", "failed"),
    "open": ("run", "under way"),
    "cancelled": ("off", "stopped"),
    "succeeded": ("ok", "done"),
    "running": ("run", "under way"),
    "queued": ("wait", "waits"),
    "ready": ("wait", "waits"),
    "paused": ("person", "asks"),
    "parked": ("stuck", "parked"),
    "expired": ("bad", "ran out of time"),
    HELD: ("none", ""),
}
"""The tone and the word of each state of a run, an attempt or a place; first those of a container's children, by their urgency."""
STATES: Final = {state: word for state, (_, word) in list(_STATES.items())[:4]}
_URGENT: Final = ("failed", "open")
_FEW: Final = 12
"""Up to as many children are shown whatever their state; of more, the most urgent ones."""
_KEYS: Final = 6000
"""The keys that attempts are looked for under at once."""
_OTHER: Final = (("start", 1), *(("resume", number) for number in range(1, 6)))
"""The work at a node that is not a numbered try."""


def tone_of(status: str) -> str:
    """Return the tone of a state of a run, an attempt or a place, as a sentence's tone; `none` for what never ran."""
    return _STATES.get(status, ("off", ""))[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLine:
    """A line of the tree: a step, a container, or a child of one."""

    name: str
    kind: str
    at: str
    """Its address; of a step, that of its sequence with its name."""
    level: int
    status: str = HELD
    word: str = ""
    tries: Sequence[Row] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """A container's children, by their state."""
    at_once: Mapping[int, int] = field(default_factory=dict)
    """How many of its children were under way, by bucket from 1."""
    began: datetime | None = None
    ended: datetime | None = None
    fault: str = ""
    child_run: str | None = None
    taken_from: str | None = None
    """The run whose result this one took over."""

    @property
    def tone(self) -> str:
        """Return who has to act, as a sentence's tone says; `none` for what never ran."""
        return tone_of(self.status)

    @property
    def has_run(self) -> bool:
        """Return whether any work was recorded there."""
        return self.status != HELD

    @property
    def key(self) -> str | None:
        """Return the key of the latest attempt at it."""
        return self.tries[-1]["key"] if self.tries else None


def way_to(plan: Plan, key: str) -> list[str]:
    """Return the addresses of the containers that lead to an attempt, from the innermost; none if the plan does not have it any more."""
    found: list[str] = []
    try:
        address = AttemptKey.parse(key).address
        while (above := plan.locate(address).above) is not None:
            found += [above] if plan.locate(above).nodes is None else []
            address = above
    except (KeyError, ValueError):
        return []
    return found


@dataclass(frozen=True, slots=True)
class TreeReader:
    """Reads parts of the tree of one run by its row and its plan, with the reads of this request."""

    reading: PageReads
    run: Row
    plan: Plan

    def sequence(self, at: str, opened: Collection[str] = ()) -> list[TreeLine]:
        """Return the nodes of a sequence in their order, and below each container of `opened` its most urgent children."""
        counts = self._counts(opened)
        children = self._children({each: self._urgent(counts.get(each)) for each in opened})
        seen = self._see([at, *(child["address"] for child in children)], counts, children)
        return list(seen.nodes(at, 0))

    def container(self, at: str, only: str | None, skip: int) -> tuple[Mapping[str, int], str, list[TreeLine]]:
        """Return how many children of a container are in which state, the state of those shown, and a page of them behind `skip`.

        `only` is their state: of all if it is empty, of the most urgent ones if None.
        """
        counts = self._counts([at])
        only = self._urgent(counts.get(at)) if only is None else only
        children = self._children({at: only}, skip)
        seen = self._see([child["address"] for child in children], counts, children)
        return counts.get(at, _NONE).states, only, list(seen.children(at, 0))

    def attempts(self, places: Iterable[tuple[str, Node]]) -> dict[tuple[str, str], list[Row]]:
        """Return the attempts at these nodes of sequences, in their order."""
        at = list(places)
        most = max(3, _KEYS // max(1, len(at)))
        keys = [key for address, node in at for key in keys_at(self.run["id"], address, node, most)]
        found: dict[tuple[str, str], list[Row]] = {}
        for row in self.reading.rows("run_attempts", keys=keys) if keys else ():
            found.setdefault((row["address"], row["step"]), []).append(row)
        return found

    def nodes_at(self, address: str) -> Nodes | tuple[()]:
        """Return the nodes of a sequence by the plan; none if the plan does not have it any more."""
        try:
            return self.plan.locate(address).nodes or ()
        except KeyError:
            return ()

    def _see(self, sequences: Sequence[str], counts: dict[str, _Children], children: Sequence[Row]) -> _Seen:
        containers = self._rows("run_containers", at=sequences) if sequences else []
        counts |= self._counts({row["address"] for row in containers} - counts.keys())
        tries = self.attempts((at, node) for at in sequences for node in self.nodes_at(at))
        return _Seen(self, counts, children, {(row["parent"], row["step"]): row for row in containers}, tries)

    def _counts(self, at: Collection[str]) -> dict[str, _Children]:
        begin, till = self.run["created_at"], self.run["ended_at"] or self.run["now"]
        seconds = max((till - begin).total_seconds(), 0.001)
        given = {"at": list(at), "begin": begin, "till": till, "seconds": seconds, "buckets": BUCKETS}
        found: dict[str, list[Row]] = {}
        for row in self._rows("run_counts", **given) if at else ():
            found.setdefault(row["parent"], []).append(row)
        is_over = self.run["ended_at"] is not None
        return {address: _Children.of(each, is_over=is_over) for address, each in found.items()}

    def _children(self, only: Mapping[str, str], skip: int = 0) -> list[Row]:
        at = {"at": list(only), "only": list(only.values())}
        return self._rows("run_children", **at, most=PAGE, skip=skip) if only else []

    def _rows(self, name: str, **parameters: Any) -> list[Row]:
        return self.reading.rows(name, run=self.run["id"], **parameters)

    @staticmethod
    def _urgent(counts: _Children | None) -> str:
        """Return the state of the children to show, if nobody chose one: of many those that failed, or are under way."""
        states = counts.states if counts is not None and sum(counts.states.values()) > _FEW else {}
        return next((state for state in _URGENT if states.get(state)), "")


@dataclass(frozen=True, slots=True)
class _Children:
    """How many children of a container are in which state, and how many were under way at once."""

    states: Mapping[str, int]
    at_once: Mapping[int, int]

    @classmethod
    def of(cls, counted: Iterable[Row], *, is_over: bool) -> _Children:
        states: dict[str, int] = {}
        changes = [0] * (BUCKETS + 2)
        for row in counted:
            status = _ended(row["status"], is_over=is_over)
            states[status] = states.get(status, 0) + row["children"]
            if row["first"] is not None and row["last"] is not None:
                changes[min(max(row["first"], 1), BUCKETS)] += row["children"]
                changes[min(max(row["last"], 1), BUCKETS) + 1] -= row["children"]
        return cls(states, {bucket: n for bucket, n in enumerate(accumulate(changes)) if n > 0})


_NONE: Final = _Children({}, {})


@dataclass(frozen=True, slots=True)
class _Seen:
    reader: TreeReader
    counts: Mapping[str, _Children]
    read: Sequence[Row]
    containers: Mapping[tuple[str, str], Row]
    tries: Mapping[tuple[str, str], Sequence[Row]]

    def nodes(self, at: str, level: int) -> Iterable[TreeLine]:
        for node in self.reader.nodes_at(at):
            line = self._node(at, node, level)
            yield line
            yield from self.children(line.at, level + 1)

    def children(self, container: str, level: int) -> Iterable[TreeLine]:
        for row in self.read:
            if row["parent"] == container:
                yield from self._child(row, level)

    def _child(self, row: Row, level: int) -> Iterable[TreeLine]:
        """Yield a child and its nodes; a child that is a single step is one line with it."""
        address, nodes = row["address"], self.reader.nodes_at(row["address"])
        tail = address.rpartition("/")[2]
        name, gap = (f"#{tail.rpartition('#')[2]}", " ") if "#" in tail else (row["name"] or tail, " / ")
        times: dict[str, Any] = {"began": row["opened_at"], "ended": row["closed_at"], "fault": row["fault"]}
        state = self._state(row["status"])
        if len(nodes) == 1 and nodes[0].kind == STEP.name:
            at, label = below(address, nodes[0].name), f"{name}{gap}{nodes[0].name}"
            tries = self.tries.get((address, nodes[0].name), ())
            yield TreeLine(name=label, kind=STEP.name, at=at, level=level, tries=tries, **state, **times)
            return
        yield TreeLine(name=name, kind="child", at=address, level=level, **state, **times)
        if row["status"] != HELD:
            yield from self.nodes(address, level + 1)

    def _node(self, at: str, node: Node, level: int) -> TreeLine:
        tries, scope = self.tries.get((at, node.name), ()), self.containers.get((at, node.name))
        known: dict[str, Any] = {"name": node.name, "kind": node.kind, "at": below(at, node.name), "level": level}
        known |= {"tries": [each for each in tries if each["kind"] != "start"]}
        if scope is not None:
            counted = self.counts.get(scope["address"], _NONE)
            known |= {"counts": counted.states, "at_once": counted.at_once, "child_run": scope["child_run"]}
            row, began, ended = scope, scope["opened_at"], scope["closed_at"]
        elif tries:
            row, began, ended = tries[-1], tries[0]["created_at"], tries[-1]["ended_at"]
        else:
            return TreeLine(**known, **self._state(HELD))
        known |= {"began": began, "ended": ended, "fault": row["fault"], "taken_from": row["taken_from"]}
        return TreeLine(**known, **self._state(row["status"]))

    def _state(self, status: str) -> dict[str, Any]:
        is_over = self.reader.run["ended_at"] is not None
        status = _ended(status, is_over=is_over)
        return {"status": status, "word": _STATES[status][1] or ("never ran" if is_over else "to come")}


def _ended(status: str, *, is_over: bool) -> str:
    """Return a state; what was open when its run ended was stopped with it."""
    return "cancelled" if is_over and status == "open" else status


def keys_at(run: str, address: str, node: Node, most: int) -> list[str]:
    """Return the keys that work at a node of a sequence can have; `most` tries at most."""
    tries = (("step", number) for number in range(1, min(node.max_attempts, most) + 1))
    return [str(AttemptKey(run, address, node.name, number, kind)) for kind, number in (*tries, *_OTHER)]
