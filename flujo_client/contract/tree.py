"""The rows of a run put in the order of its places: scopes and attempts in, what became of each node out. Pure.

What results and traces have in common: a sequence's nodes in the order they ran, a container's children by their place. Nothing is
judged, summed or left out here; each attempt row stands at exactly one node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from flujo_client.address import ROOT, STEP
from flujo_client.contract.run import SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from flujo_client.contract.run import AttemptRecord, ScopeRecord

LOOP = "loop"


class SequenceRows(NamedTuple):
    """A container's child: its scope, and the nodes that were begun in it."""

    scope: ScopeRecord
    nodes: list[NodeRows]


@dataclass(slots=True)
class NodeRows:
    """All rows of one node in one sequence.

    Attributes:
        sequence: the address of the sequence it stands in.
        tries: the attempts at it; a router has some and a scope too.
        starts_and_joins: the work that moved a container and is no try at a step.
        scope: the container's own; None for a step, and for a container that is about to begin.
        number: where the first attempt at it or in it stands among all of the run; -1 when there is none.
    """

    sequence: str
    name: str
    tries: list[AttemptRecord] = field(default_factory=list)
    starts_and_joins: list[AttemptRecord] = field(default_factory=list)
    scope: ScopeRecord | None = None
    children: list[SequenceRows] = field(default_factory=list)
    number: int = -1

    @property
    def is_fan_out(self) -> bool:
        """Tell whether its children ran side by side: each has a lane in it, or waits for one."""
        scope = self.scope
        return scope is not None and any(scope.address in child.scope.lanes for child in self.children)

    @property
    def began_at(self) -> datetime:
        """When it was begun."""
        if self.scope is not None and not self.tries:
            return self.scope.opened_at
        return (self.tries or self.starts_and_joins)[0].created_at


def arrange(attempts: Sequence[AttemptRecord], scopes: Sequence[ScopeRecord]) -> list[NodeRows]:
    """Give the root's nodes, with all that stands in them.

    Args:
        attempts: all of the run, in the order they were made.
        scopes: all of the run, read after the attempts, so that each attempt's is among them; none for a run of steps alone.
    """
    nodes = _Nodes(scopes)
    for number, row in enumerate(attempts):
        at = nodes.of(row)
        (at.tries if row.kind == STEP else at.starts_and_joins).append(row)
        nodes.number(at, number)
    return nodes.grown(sorted(scopes, key=attrgetter("place")))


class _Nodes:
    """The nodes that are known so far, by the sequence they stand in and their name."""

    def __init__(self, scopes: Sequence[ScopeRecord]) -> None:
        self._nodes: dict[str, dict[str, NodeRows]] = {}
        self._scopes = {scope.address: scope for scope in scopes}
        self._boxes: dict[str | None, NodeRows] = {}
        for scope in scopes:
            if scope.kind != SEQUENCE:
                box = self._boxes[scope.address] = self._at(scope.parent or ROOT, scope.step or "")
                box.scope = scope

    def of(self, row: AttemptRecord) -> NodeRows:
        """The node a row belongs to: work at a container's own address is that container's."""
        return self._boxes.get(row.address) or self._at(row.address, row.step)

    def number(self, node: NodeRows | None, number: int) -> None:
        """Note the first attempt at a node, and in every container around it."""
        while node is not None and node.number < 0:
            node.number = number
            around = self._scopes.get(node.sequence)
            node = None if around is None else self._boxes.get(around.parent)

    def grown(self, scopes: Sequence[ScopeRecord]) -> list[NodeRows]:
        """The root's nodes, once each sequence, in the order given, has been put into its container."""
        nodes = {address: _in_order(each.values()) for address, each in self._nodes.items()}
        for scope in scopes:
            if scope.kind == SEQUENCE and scope.parent in self._boxes:
                self._boxes[scope.parent].children.append(SequenceRows(scope, nodes.get(scope.address, [])))
        return nodes.get(ROOT, [])

    def _at(self, sequence: str, name: str) -> NodeRows:
        here = self._nodes.setdefault(sequence, {})
        return here.setdefault(name, NodeRows(sequence, name))


def _in_order(nodes: Iterable[NodeRows]) -> list[NodeRows]:
    """In the order they were begun, by time and then by their attempts: a store's clock may stand still.

    An empty container has no attempt; the commit that opened it went on to what follows it, so it comes first.
    """
    return sorted(nodes, key=lambda node: (node.began_at, node.number, node.scope.place if node.scope else 0))
