"""The draft of one decision: the scopes it has read or opened, the work it creates, the events it emits. Pure.

Questions to user code or to the rows are *yielded* (`CallUserCode`, `ReadScope`) and answered by the caller; the same answers give the same
decision, so a replay needs neither.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from flujo_client.address import END, ROOT, is_repeated
from flujo_client.contract.envelope import AttemptKind
from flujo_client.contract.outcome import Event, Fault
from flujo_client.contract.records import CODE, SEQUENCE
from flujo_client.frozen import frozen
from flujo_client.plan.plan import Node, Plan
from flujo_client.serial import Packed
from flujo_worker.domain import values
from flujo_worker.domain.transitions import SCOPE, require
from flujo_worker.domain.values import copied

Steps: TypeAlias = Generator[values.CallUserCode | values.ReadScope, Any, None]
StepsWithResult: TypeAlias = Generator[values.CallUserCode | values.ReadScope, Any, Any]

MAX_HOPS = 25
"""Containers one decision may enter before it puts a message in between: what never meets a step must not fill one commit."""


_VERSIONS: Final = 1_000_000_000
"""The versions of claims begin here and are as many: all have ten digits, so that no message is larger than the one before for them."""
_BEGINNINGS: Final = 100_000_000
"""The number of versions, below 0, of the roots of child runs: so few that the difference to a claim's still is an integer of Postgres."""


@dataclass
class ScopeState:
    """A scope as the decision leaves it. `seen` is what it was when it was read; None for one that is opened.

    `code` names the versions of code that the conversation in it was held with. Few scopes have one, so it is stored with their metadata.
    """

    address: str
    parent: str | None
    kind: str
    step: str
    name: str
    output: Packed
    context: Packed | None
    lanes: dict[str, int]
    place: int = 0
    cursor: int = 0
    version: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    status: values.ScopeStatus = "open"
    waiting: bool = False
    patch: Packed | None = None
    fault: Fault | None = None
    merges: bool = False
    seen: tuple[Packed, Packed | None] | None = None
    code: tuple[str, ...] = ()

    def lane_in(self, fan_out: str) -> int:
        """Return its lane in a fan-out; raises MessageOutdated."""
        if fan_out not in self.lanes:
            raise values.MessageOutdated
        return self.lanes[fan_out]

    def close(self, status: values.ScopeStatus, fault: Fault | None = None) -> None:
        """Close it; raises IllegalTransition if it is closed."""
        require(SCOPE, self.status, status)
        self.status, self.fault, self.waiting = status, fault, False


def noop(*_: Any) -> Steps:
    """Do nothing: nothing follows."""
    yield from ()


def continue_in_child(*_: Any) -> StepsWithResult:
    """Do nothing: the child continues."""
    yield from ()
    return False


@frozen
class Kind:
    """The functions of a kind of node."""

    enter: Callable[[DecisionBuilder, ScopeState, Node], Steps]
    """A sequence has reached it."""
    closed: Callable[[DecisionBuilder, ScopeState, Node, ScopeState], Steps] = noop
    """One of its children, which run one at a time, has closed."""
    joined: Callable[[DecisionBuilder, ScopeState, Node], Steps] = noop
    """All of its branches have closed, or the child run it began has ended."""
    answered: Callable[[DecisionBuilder, ScopeState, Node], Steps] = noop
    """A step attempt at it has succeeded."""
    on_answer: Callable[[DecisionBuilder, ScopeState, Node, Packed, Packed | None], StepsWithResult] = continue_in_child
    """A question in one of its children was answered, with this output and context; it returns whether it has ended the child."""


@dataclass
class DecisionBuilder:
    """A decision in the making; see `decide`."""

    plan: Plan
    notice: values.AttemptReport
    kinds: dict[str, Kind]
    control_queue: str
    pauses: Mapping[int, values.UserCodePaused] = field(default_factory=dict)
    """Where the decision stops for a question of user code, by the number of the stop."""
    stop: int = 0
    """The number of the latest place where it could stop, and `stops_at` that place's address."""
    stops_at: str = ROOT
    close: values.CloseAttempt = field(default_factory=lambda: values.CloseAttempt("succeeded"))
    scopes: dict[str, ScopeState] = field(default_factory=dict)
    works: list[values.NextAttempt] = field(default_factory=list)
    begun: list[values.StepCheckpoint] = field(default_factory=list)
    """The top-level steps this decision has come to; `begun_with` is the context that the last of them began with."""
    begun_with: Packed | None = None
    events: list[Event] = field(default_factory=list)
    cache_entries: list[values.CacheEntry] = field(default_factory=list)
    fan_out: values.FanOut | None = None
    child_run: values.ChildRun | None = None
    branch_end: values.BranchClosed | None = None
    lane_left: values.SlotReleased | None = None
    end: values.EndRun | None = None
    hops: int = 0

    def container(self, scope: ScopeState) -> Node:
        """Return the container that a scope is, or is a child of; the root has none."""
        container = self.plan.locate(scope.address).container
        if container is None:
            raise KeyError(f"scope '{scope.address}' is not in a container")
        return container

    def node(self, scope: ScopeState) -> Node:
        """Return the node that a sequence is at."""
        return (self.plan.locate(scope.address).nodes or ())[scope.cursor]

    def place(self, scope: ScopeState) -> Node:
        """Return the node that a sequence is at, or the container if the scope is one or is at the end of one's body."""
        is_at_node = scope.kind == SEQUENCE and scope.cursor < len(self.plan.locate(scope.address).nodes or ())
        return self.node(scope) if is_at_node else self.container(scope)

    def own(self) -> ScopeState:
        """Return the attempt's own scope, as its envelope has it."""
        envelope = self.notice.envelope
        location, mark = self.plan.locate(envelope.address), self.notice.outcome.code
        cursor = 0
        if location.nodes:
            cursor = len(location.nodes) if envelope.step.endswith(END) else location.nodes.places[envelope.step]
        scope = ScopeState(
            address=envelope.address,
            parent=None if envelope.address == envelope.ticket.root else location.above,
            kind=SEQUENCE if location.nodes is not None or location.container is None else location.container.kind,
            step=location.container.name if location.container else "",
            name=envelope.address.rpartition("/")[2],
            cursor=cursor,
            version=envelope.version,
            output=envelope.input,
            context=envelope.context,
            lanes=dict(envelope.lanes),
            seen=(envelope.input, envelope.context),
            code=envelope.code if mark is None else mark.conversation,
        )
        self.scopes[scope.address] = scope
        return scope

    def read_scope(self, address: str) -> Generator[values.ReadScope, Any, ScopeState]:
        """Read a scope, unless this decision knows it already."""
        known = self.scopes.get(address)
        if known is not None:
            return known
        row = yield values.ReadScope(address)
        scope = _read(row)
        self.scopes[address] = scope
        return scope

    def children(self, container: ScopeState) -> Generator[values.ReadScope, Any, list[ScopeState]]:
        """Read a container's children by their place, as this decision leaves them: the rows do not have its changes yet."""
        rows = () if container.seen is None else (yield values.ReadScope(container.address, children=True))
        found = {row.address: _read(row) for row in rows}
        found |= {scope.address: scope for scope in self.scopes.values() if scope.parent == container.address}
        return list(found.values())

    def open(self, scope: ScopeState) -> ScopeState:
        self.scopes[scope.address] = scope
        return scope

    def work(self, scope: ScopeState, node: Node, **rest: Any) -> None:
        """Make a work row for a node of a sequence; `step` is the place's name, where that is not the node's."""
        self.works.append(self.attempt(scope, node, **rest))

    def attempt(self, scope: ScopeState, node: Node, *, kind: AttemptKind = "step", **rest: Any) -> values.NextAttempt:
        """Make a work row for a node of a sequence, in whichever run that is."""
        return values.NextAttempt(
            address=scope.address,
            step=rest.pop("step", node.name),
            number=rest.pop("number", 1),
            queue=self.control_queue if kind == "start" else node.queue or self.notice.envelope.ticket.queue,
            input=scope.output,
            context=scope.context,
            version=self.next_version(scope),
            lanes=scope.lanes,
            kind=kind,
            code=scope.code,
            **rest,
        )

    def next_version(self, scope: ScopeState) -> int:
        """Return the version that a scope will be committed with.

        What is merged or opened under a claim has that claim's version: if a failover loses it, messages with its values, which outlive it in the
        broker, fit no scope that the next claim makes. The root of a run begins at 0; that of a child run at the claim's version below 0.
        """
        is_new, claim_id = scope.seen is None, self.notice.claim_id
        if not (is_new or scope.merges):
            return scope.version
        if claim_id is None:
            return scope.version + (not is_new)
        number = zlib.crc32(claim_id.encode())
        return -(number % _BEGINNINGS) if is_new and scope.parent is None else _VERSIONS + number % _VERSIONS

    def begin(self, scope: ScopeState) -> None:
        """Record what a top-level step begins with. Child runs are not retried by themselves, so theirs are not recorded."""
        if scope.address != ROOT:
            return
        envelope, before = self.notice.envelope, self.begun_with
        if not self.begun and envelope.address == ROOT and envelope.kind in ("step", "start"):
            before = envelope.context  # else it is not known: a question or a router has written since then
        self.begun.append(values.StepCheckpoint(scope.cursor, None if scope.context == before else scope.context))
        self.begun_with = scope.context

    def emit(self, name: str, level: str = "info", **data: Any) -> None:
        self.events.append(Event(name, data, level))

    def decision(self) -> values.Decision:
        own, above = self.notice.envelope.address, list[ScopeState]()
        if len(self.works) == 1:  # without the attempt's own scope, of which not all is known
            above = [scope for scope in self.scopes.values() if scope.status == "open" and scope.address != own]
        return copied(
            values.Decision,
            self,
            moves=tuple(map(self._move, self._moved())),
            opens=tuple(self._opening(scope) for scope in self.scopes.values() if scope.seen is None),
            next=tuple(self.works),
            begun=tuple(self.begun),
            events=tuple(self.events),
            answers=(),
            stored=(),
            cache_entries=tuple(self.cache_entries),
            above=tuple(map(self._left, above)),
        )

    def _moved(self) -> list[ScopeState]:
        """Return the attempt's own scope, then the others, deepest first: the order in which everything locks."""
        own, *others = [scope for scope in self.scopes.values() if scope.seen is not None]
        return [own, *sorted(others, key=lambda scope: (-len(scope.address), scope.address))]

    def _left(self, scope: ScopeState) -> values.ScopeRow:
        version = self.next_version(scope)
        return copied(values.ScopeRow, scope, version=version, waiting=False, metadata=_metadata(scope))

    def _move(self, scope: ScopeState) -> values.UpdateScope:
        output, context = scope.seen or (None, None)
        keeps = _keeps_context(scope)
        return copied(
            values.UpdateScope,
            scope,
            merges=self.next_version(scope) - scope.version,
            output=None if scope.output is output else scope.output,
            context=scope.context if keeps and scope.context is not context else None,
            drops_context=not keeps,
            metadata=_metadata(scope),
        )

    def _opening(self, scope: ScopeState) -> values.ScopeRow:
        context, version = scope.context if _keeps_context(scope) else None, self.next_version(scope)
        parent, metadata = scope.parent or "", _metadata(scope)
        return copied(values.ScopeRow, scope, parent=parent, version=version, context=context, metadata=metadata)


def _read(row: values.ScopeRow) -> ScopeState:
    metadata, seen = dict(row.metadata), (row.output, row.context)
    own = {"step": row.step or "", "name": row.name or "", "lanes": dict(row.lanes), "seen": seen, "merges": False}
    return copied(ScopeState, row, metadata=metadata, code=tuple(metadata.pop(CODE, ())), **own)


def _keeps_context(scope: ScopeState) -> bool:
    """Return whether a scope's row has its context; of iterations, of which there may be any number, none does that has closed."""
    if scope.status == "open" or scope.parent is None:
        return True
    return scope.status == "succeeded" and not is_repeated(scope.address)


def _metadata(scope: ScopeState) -> dict[str, Any]:
    return scope.metadata | {CODE: list(scope.code)} if scope.code else scope.metadata
