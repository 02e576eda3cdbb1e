"""Put the rows of a run in the order of the plan: scopes and attempts in, each node's outcome out. Pure.

Results and traces share this: a sequence's nodes in the order they ran, a container's children by their place. Nothing is judged, summed or
left out here; each attempt row is at exactly one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import NamedTuple

from flujo_client.address import ROOT, STEP
from flujo_client.contract.records import SEQUENCE, AttemptRecord, ScopeRecord

TRIES = (STEP, "resume")
"""The kinds of work that are tries at a node: a step's attempts, and the questions a human step asks."""


class SequenceRows(NamedTuple):
    """A container's child: its scope, and the nodes that were begun in it."""

    scope: ScopeRecord
    nodes: list[NodeRows]


@dataclass(slots=True)
class NodeRows:
    """All rows of one node in one sequence."""

    name: str
    tries: list[AttemptRecord] = field(default_factory=list)
    """The attempts at it; a router has some and a scope too."""
    starts_and_joins: list[AttemptRecord] = field(default_factory=list)
    """The work that moved a container and does not try a step."""
    scope: ScopeRecord | None = None
    """The container's own; None for a step, and for a container that is about to begin."""
    children: list[SequenceRows] = field(default_factory=list)

    @property
    def is_fan_out(self) -> bool:
        """Return whether its children ran side by side: each has a lane in it, or waits for one."""
        scope = self.scope
        return scope is not None and any(scope.address in child.scope.lanes for child in self.children)

    @property
    def began_at(self) -> datetime:
        """Return when it was begun."""
        if self.scope is not None and not self.tries:
            return self.scope.opened_at
        return (self.tries or self.starts_and_joins)[0].created_at


def arrange(attempts: Sequence[AttemptRecord], scopes: Sequence[ScopeRecord]) -> list[NodeRows]:
    """Return the root's nodes, with all that is in them.

    Args:
        attempts: all of the run, in the order they were made.
        scopes: all of the run, read after the attempts, so that each attempt's is among them; none for a run of steps alone.
    """
    nodes: dict[str, dict[str, NodeRows]] = {}
    containers: dict[str | None, NodeRows] = {}

    def node(sequence: str, name: str) -> NodeRows:
        return nodes.setdefault(sequence, {}).setdefault(name, NodeRows(name))

    for scope in scopes:
        if scope.kind != SEQUENCE:
            container = containers[scope.address] = node(scope.parent or ROOT, scope.step or "")
            container.scope = scope
    for row in attempts:
        at = containers.get(row.address) or node(row.address, row.step)
        (at.tries if row.kind in TRIES else at.starts_and_joins).append(row)
    root = next((scope.address for scope in scopes if scope.parent is None), ROOT)
    begun = {address: _in_order(each.values()) for address, each in nodes.items()}
    for scope in sorted(scopes, key=attrgetter("place")):
        if scope.kind == SEQUENCE and scope.parent in containers:
            containers[scope.parent].children.append(SequenceRows(scope, begun.get(scope.address, [])))
    return begun.get(root, [])


def _in_order(nodes: Iterable[NodeRows]) -> list[NodeRows]:
    """Return them in the order they ran: steps by their attempts, and between them each container at its place.

    Times are not compared, for all that one commit begins has one time: an empty container, and what follows it.
    """
    steps, containers = list[NodeRows](), list[tuple[int, NodeRows]]()
    for node in nodes:
        if node.scope is None:
            steps.append(node)
        else:
            containers.append((node.scope.place, node))
    for place, container in sorted(containers, key=itemgetter(0)):
        steps.insert(place, container)
    return steps
