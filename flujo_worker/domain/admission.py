"""Choose which waiting runs are admitted: fairly between the queues of a gate, never above its capacity. Pure.

The queues of a gate take turns by their weights: each admission moves a queue's turn on by 1 / weight, and the queue with the earliest turn is next. A
queue that was empty continues at the gate's present turn, so that it neither waits for the others nor catches up with them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from flujo_client.contract.admission import Gate
from flujo_client.frozen import frozen


@frozen
class WaitingRun:
    """A run that waits at a gate, in the queue `flow`; `arrived` orders runs of one priority; `held` names the gates it has a place in."""

    run: str
    gate: str
    flow: str
    priority: int
    arrived: int
    gates: tuple[Gate, ...]
    held: frozenset[str] = frozenset()

    @property
    def missing(self) -> list[Gate]:
        return [gate for gate in self.gates if gate.name not in self.held]


@frozen
class GateState:
    """The taken places of a gate, and its turns: the present one, and the next of each queue that is ahead of it."""

    taken: int
    turn: float = 0.0
    turns: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, taken: int, tree: Mapping[str, Any]) -> GateState:
        return cls(taken, tree.get("turn", 0.0), tree.get("turns", {}))

    def to_tree(self) -> dict[str, Any]:
        """Return the turns as the row stores them."""
        return {"turn": self.turn, "turns": dict(self.turns)}

    def turn_of(self, flow: str) -> float:
        return max(self.turn, self.turns.get(flow, self.turn))

    def with_place_taken(self) -> GateState:
        return GateState(self.taken + 1, self.turn, self.turns)

    def after(self, flow: str, weight: float) -> GateState:
        """Let a queue have its turn."""
        turn = self.turn_of(flow)
        turns = {**self.turns, flow: turn + 1 / weight}
        return GateState(self.taken, turn, {name: at for name, at in turns.items() if at > turn})


@frozen
class AdmissionDecision:
    """The changes to write: runs to admit, runs that now wait at another gate with the places they hold, and the new state of the gates."""

    admitted: tuple[str, ...]
    moved: tuple[tuple[str, Gate], ...]
    kept: tuple[tuple[str, Gate], ...]
    states: Mapping[str, GateState]


def admit(waiting: Sequence[WaitingRun], states: Mapping[str, GateState]) -> AdmissionDecision:
    """Decide who passes of the first runs of each queue; one with a gate that is not among the states, which are locked, is left as it is."""
    now, admitted, moved, kept = dict(states), [], [], []
    for gate, queues in _queues(waiting, states).items():
        while queues:
            flow = min(queues, key=lambda name: (now[gate].turn_of(name), queues[name][0].arrived))
            run = queues[flow].popleft()
            if not queues[flow]:
                del queues[flow]
            full = next((each for each in run.missing if not _has_room(each, now[each.name])), None)
            if full is not None and full.name == gate:
                break
            if full is not None:
                moved.append((run.run, full))
                kept += [(run.run, each) for each in _place_at_once(run, now)]
                continue
            admitted.append(run.run)
            own = next(each for each in run.gates if each.name == gate)
            now[gate] = now[gate].after(flow, own.weight)
            for each in run.missing:
                now[each.name] = now[each.name].with_place_taken()
    return AdmissionDecision(tuple(admitted), tuple(moved), tuple(kept), now)


def _place_at_once(run: WaitingRun, now: dict[str, GateState]) -> list[Gate]:
    """Take the places that a run holds while it waits at another gate."""
    found = [gate for gate in run.missing if gate.decides_at_once and gate.most and _has_room(gate, now[gate.name])]
    for gate in found:
        now[gate.name] = now[gate.name].with_place_taken()
    return found


def _has_room(gate: Gate, state: GateState) -> bool:
    return gate.most is None or state.taken < gate.most


def _queues(waiting: Sequence[WaitingRun], states: Mapping[str, GateState]) -> dict[str, dict[str, deque[WaitingRun]]]:
    """Sort the runs whose gates are all known into the queues of the gates that they wait at."""
    queues: dict[str, dict[str, deque[WaitingRun]]] = defaultdict(lambda: defaultdict(deque))
    for run in sorted(waiting, key=lambda each: (each.priority, each.arrived)):
        if all(gate.name in states for gate in run.gates):
            queues[run.gate][run.flow].append(run)
    return queues
