"""Put the rows of a run in the order of the plan, and an attempt's events in that of its calls of agents as tools. Pure.

Results and traces share this: a sequence's nodes in the order they ran, a container's children by their place. Nothing is judged, summed or
left out here; each attempt row is at exactly one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, NamedTuple

from flujo_client.address import ROOT, STEP
from flujo_client.contract.records import SEQUENCE, AttemptRecord, ScopeRecord

if TYPE_CHECKING:
    from flujo_client.contract.trace import TraceEvent


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
    """The attempts at the node; a router has attempts and a scope."""
    starts_and_joins: list[AttemptRecord] = field(default_factory=list)
    """The work that starts or joins a container and does not try a step."""
    scope: ScopeRecord | None = None
    """The container's own scope; None for a step, and for a container that is about to begin."""
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


def seconds_between(start: datetime, end: datetime | None) -> float | None:
    """Return the time between two moments, at least 0; None if the second moment has not come."""
    return None if end is None else max(0.0, (end - start).total_seconds())


def arrange(attempts: Sequence[AttemptRecord], scopes: Sequence[ScopeRecord]) -> list[NodeRows]:
    """Return the root's nodes, with all that is in them.

    The attempts are in the order they were made. The scopes were read after the attempts, so that each attempt's scope is among them; a run of
    plain steps has no scopes.
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


CALLED, RETURNED, RAISED = "agent_tool.called", "agent_tool.returned", "agent_tool.raised"
REFUSED = ("agent_tool.input_invalid", "agent_tool.output_invalid")
USAGE = "agent.usage"
AGENT = "agent"
"""The word of `agent.usage` for the step's own agent."""


@dataclass
class ToolCall:
    """One call. A refused one has failed, as one whose agent raised; one whose end was not reported is `running`."""

    tool: str
    agent: str | None
    offset_s: float
    status: str = "running"
    duration_s: float | None = None
    tokens: int = 0
    cost_usd: float = 0.0
    feedback: str | None = None
    events: list[TraceEvent] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def take(self, event: TraceEvent) -> None:
        """Add an event that belongs to this call."""
        self.events.append(event)
        data = event.data
        if event.name in REFUSED:
            self.feedback = data.get("message_preview")
        elif event.name in (RETURNED, RAISED):
            self.feedback = data.get("error", self.feedback)
            self.status = "succeeded" if self.feedback is None else "failed"
            self.duration_s = data.get("latency_ms", 0.0) / 1000
        elif event.name == USAGE:
            self.tokens += data.get("input_tokens", 0) + data.get("output_tokens", 0)
            self.cost_usd += data.get("cost_usd", 0.0)


def auxiliary_calls(events: Sequence[TraceEvent]) -> list[ToolCall]:
    """Return the auxiliary model calls in an attempt's own events: those of prechecks, processors, plugins and validators."""
    found: list[ToolCall] = []
    for event in events:
        if event.name == USAGE and (called := str(event.data.get("call", AGENT))) != AGENT:
            call = ToolCall(called, None, event.offset_s, "succeeded")
            call.take(event)
            found.append(call)
    return found


def tool_calls(events: Sequence[TraceEvent]) -> tuple[list[TraceEvent], list[ToolCall]]:
    """Sort an attempt's events into those outside any call, and its outermost calls."""
    own: list[TraceEvent] = []
    outermost: list[ToolCall] = []
    known: dict[str, ToolCall] = {}
    for event in events:
        number = str(event.data.get("tool_call"))
        if event.name == CALLED:
            call = known[number] = ToolCall(str(event.data.get("tool")), event.data.get("agent"), event.offset_s)
            around = known.get(str(event.data.get("within")))
            (outermost if around is None else around.calls).append(call)
        if number in known:
            known[number].take(event)
        else:
            own.append(event)
    return own, outermost
