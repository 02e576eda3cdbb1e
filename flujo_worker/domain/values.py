"""The values that deciding is made of."""

from __future__ import annotations

from dataclasses import field, fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from flujo_client.address import AttemptKey
from flujo_client.contract.envelope import AttemptKind, Envelope, RunHeader
from flujo_client.frozen import frozen

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from flujo_client.contract.outcome import Event, Fault, Outcome
    from flujo_client.serial import Packed
    from flujo_worker.domain.budget import Reservation

T = TypeVar("T", bound="DataclassInstance")
AttemptEnd = Literal["succeeded", "failed", "cancelled"]
ScopeStatus = Literal["open", "succeeded", "failed", "cancelled"]
RunEnd = Literal["succeeded", "failed", "cancelled", "expired"]


def copied(kind: type[T], source: object, **own: Any) -> T:
    """Make a value of a kind from the fields of the same names of another value; `own` replaces some of them."""
    names, read = _others(kind, tuple(own))
    return kind(**dict(zip(names, read(source), strict=True)), **own)


@cache
def _others(kind: type[DataclassInstance], own: tuple[str, ...]) -> tuple[list[str], attrgetter[tuple[Any, ...]]]:
    """Return the other fields of a kind, of which there are several, and what reads them."""
    names = [each.name for each in fields(kind) if each.init and each.name not in own]
    return names, attrgetter(*names)


@frozen
class AttemptReport:
    """The report to the coordinator: the outcome of this attempt, claimed under this fence."""

    envelope: Envelope
    fence: int
    outcome: Outcome
    claim_id: str | None = None
    """Of the claim. Two claims have the same fence if a crash of Postgres lost the first. None: it was not claimed for work."""
    reserved: tuple[Reservation, ...] = ()
    """The reservations of the claim, which may be lost with it."""


@frozen
class CloseAttempt:
    """The attempt's end."""

    status: AttemptEnd
    reason: str | None = None


@frozen
class UpdateScope:
    """The next state of an existing scope: the attempt's own, or one above it. None: no change."""

    address: str
    version: int
    """The scope's, as it was read; the commit is rejected if it has changed."""
    cursor: int
    status: ScopeStatus = "open"
    merges: int = 0
    """The number that a merge adds to the scope's version; 0: nothing is merged into it."""
    output: Packed | None = None
    context: Packed | None = None
    drops_context: bool = False
    """A scope that closes passes its context up; its row stores none unless that is part of a result."""
    patch: Packed | None = None
    """The changes of a successful branch's context."""
    fault: Fault | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@frozen
class ScopeRow:
    """A scope as it is recorded, or to be made: then it may be closed again by the same decision."""

    address: str
    parent: str | None
    kind: str
    """`sequence` if it runs nodes in order, else the container's kind."""
    step: str | None
    """The name of the container's node."""
    name: str | None
    """Its name in results: the node's, branch's, path's or state's name, or `loop#3`."""
    place: int
    """Its place among its siblings, from 0 in declared order; iterations count from 1."""
    output: Packed
    """Its input, until something in it has an output."""
    context: Packed | None
    lanes: dict[str, int]
    """The fan-outs it is in, outermost first, with its lane in each."""
    cursor: int = 0
    status: ScopeStatus = "open"
    version: int = 0
    waiting: bool = False
    """Whether a fan-out waits for its branches; set only for a scope to be made."""
    patch: Packed | None = None
    fault: Fault | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


SLEEP: Final = "sleep"
SHORT_DELAY_S: Final = 10.0
"""The longest wait that a worker times itself: a sweep, which is about a second late, would not keep shorter ones."""


@frozen
class NextAttempt:
    """A work row to be made, with all that its message needs: published at once, or when `delay_s` seconds are over.

    The version, the input, the context, the lanes and the code are those of its scope, as this decision leaves it.
    """

    address: str
    step: str
    number: int
    queue: str
    input: Packed
    context: Packed | None
    version: int
    lanes: dict[str, int] = field(default_factory=dict)
    kind: AttemptKind = "step"
    delay_s: float = 0.0
    until: float | None = None
    """The unix second at which it is due, by the store's clock; at once if that has passed."""
    waits_for: str | None = None
    """`SLEEP` where the run sleeps until it is due."""
    guidance: str | None = None
    units_from: int | None = None
    """The number of the attempt whose units it shares."""
    pauses: int = 0
    held: bool = False
    """Not published until a lane is free for it."""
    question: dict[str, Any] | None = None
    """The question to a person: the row is paused until the answer comes, or for `delay_s` seconds if that is not 0."""
    fault: Fault | None = None
    """Why a question could not be asked: the row is failed from the start, so that the history has it."""
    code: tuple[str, ...] = ()
    claimed_by: str | None = None
    """The worker that has it from the start, if that worker is alive and the run may continue."""
    to_reserve: tuple[Reservation, ...] = ()
    """The reservations of that claim. Only a group merge makes them; a single merge does not claim the attempt."""

    @property
    def sent_after_s(self) -> float | None:
        """Return the seconds after which the worker that decides this publishes it itself; None: it does not. Longer waits end with a sweep."""
        waits = self.held or self.question or self.fault or self.until is not None or self.delay_s > SHORT_DELAY_S
        return None if waits else self.delay_s

    def key_in(self, run: str) -> str:
        return str(AttemptKey(run, self.address, self.step, self.number, self.kind))

    @property
    def status(self) -> str:
        return "failed" if self.fault else "paused" if self.question else "ready"


@frozen
class StepCheckpoint:
    """A top-level step that is begun, and its initial context; None: the same as the previous step's. A retry from that step starts from it."""

    place: int
    context: Packed | None


@frozen
class ChildRun:
    """A run that begins as a step of this one; what is in its ticket is its own, the rest it has from this one."""

    ticket: RunHeader
    parent_address: str | None
    """The container of this run that waits for it; None if none does, because it runs in the background."""
    name: str
    """The name in lists."""
    first: NextAttempt
    """Its first work row, whose address is the new run's root."""

    @property
    def run(self) -> str:
        return self.ticket.run


@frozen
class CacheEntry:
    """A cached step's result, to be stored under its key once it is merged; equal calls that wait for it can then take it."""

    path: str
    """The cached step's, in the plan."""
    key: str
    holder: str
    """Names the call, which other calls may wait for."""
    output: Packed | None = None
    """None when there is nothing to store: the calls that wait need not wait any longer."""
    patch: Packed | None = None
    """Its changes of the context; None: it made none."""
    fallbacks: int = 0
    """The number of fallbacks that were used: 0 if the step itself gave the output, 1 if its fallback did, and so on."""


class Cached(NamedTuple):
    """The cached result of a step: its output and the context after it, or why there is none. No key: the result is not stored either."""

    key: str | None = None
    why: str | None = None
    output: Packed | None = None
    context: Packed | None = None


@frozen
class FanOut:
    """A fan-out that begins: `lanes` strands are published, as one chord."""

    address: str
    lanes: int


@frozen
class BranchClosed:
    """A branch that this decision closes."""

    address: str
    fan_out: str
    lane: int
    aborts: bool = False
    """Mark the fan-out, so that the siblings close themselves."""
    takes: bool = True
    """The commit gives the lane to the next waiting sibling."""


@frozen
class SlotReleased:
    """A branch pauses: the commit gives its lane to the next waiting sibling, if any."""

    fan_out: str
    lane: int
    addresses: tuple[str, ...]
    """The branch's scope and those below it down to the one that pauses."""


@frozen
class EndRun:
    """The run's end."""

    status: RunEnd
    reason: str | None = None
    fault: Fault | None = None
    output: Packed | None = None

    @property
    def failed_key(self) -> str | None:
        """Return the key of the attempt whose error it is: of this run or a child run; None if no attempt failed."""
        return self.fault.key or None if self.fault else None


@frozen
class Decision:
    """All that one commit changes, and what is to be published after it."""

    notice: AttemptReport
    close: CloseAttempt
    moves: tuple[UpdateScope, ...]
    """The attempt's own scope first, then those above it, each followed by its parent."""
    opens: tuple[ScopeRow, ...] = ()
    next: tuple[NextAttempt, ...] = ()
    begun: tuple[StepCheckpoint, ...] = ()
    """The top-level steps that it comes to, in their order, including a step that closes again at once."""
    fan_out: FanOut | None = None
    child_run: ChildRun | None = None
    branch_end: BranchClosed | None = None
    lane_left: SlotReleased | None = None
    end: EndRun | None = None
    events: tuple[Event, ...] = ()
    answers: tuple[dict[str, Any], ...] = ()
    """The answers of user code and rows on the way, for a replay without them."""
    cache_entries: tuple[CacheEntry, ...] = ()
    """Results for the cache, which gets them after the commit."""
    above: tuple[ScopeRow, ...] = ()
    """Where one attempt follows: the scopes that this decision has read or opened, as it leaves them open."""
    stored: tuple[str, ...] = ()
    """The digests of the values that are stored before it. Without one of them it is not merged: a failover may lose them in between."""

    @property
    def awaits_event(self) -> bool:
        """Return whether what follows waits for an event, which may have been sent already."""
        return any("event" in (each.question or ()) for each in self.next)

    @property
    def failed_input(self) -> Packed | None:
        """Return the input of a step's attempt that has failed, which its row keeps; None for any other."""
        has_failed = self.close.status == "failed" and self.close.reason not in ("paused", "waiting")
        return self.notice.envelope.input if has_failed and self.notice.envelope.kind == "step" else None

    @property
    def move(self) -> UpdateScope:
        return self.moves[0]

    def why_not_merged(
        self, claim: tuple[int, str | None], end: tuple[str, str | None], *, is_stopped: bool
    ) -> Literal["repeated", "stopped", "stale"]:
        """Return why it is not merged, by its attempt's row. The same end under the same claim is this same outcome: only its holder could close it so."""
        is_own = claim[0] == self.notice.fence and self.notice.claim_id in (None, claim[1])
        if is_own and end == (self.close.status, self.close.reason):
            return "repeated"
        return "stopped" if is_stopped else "stale"

    def envelope_of(self, following: NextAttempt) -> Envelope:
        return copied(Envelope, following, ticket=self.notice.envelope.ticket)


@frozen
class ChildRunRow:
    """A child run that is waited for, as it is recorded, with the context of its root scope; its output is its input until it has succeeded."""

    run: str
    parent_run: str
    parent_address: str
    status: str
    reason: str | None
    fault: Fault | None
    output: Packed
    context: Packed | None


@frozen
class CallUserCode:
    """A question to user code, or a question that only live values can answer; the caller holds no lock."""

    role: str
    """The kind of question, a key of `flujo_worker.user_code.ROLES`."""
    path: str
    values: tuple[Packed | None, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)


@frozen
class ReadScope:
    """A question to the rows: one scope, or with `children` all its children in their order, or the child run that was begun there."""

    address: str
    children: bool = False
    child_run: str | None = None


class MessageOutdated(Exception):
    """The attempt's message is of a commit that a failover has lost: it was made while its branch had no lane, and the branch has one now."""


class UserCodeFailed(Exception):
    """An Ask that user code did not answer: it raised, took too long, or gave what cannot be."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class UserCodePaused(Exception):
    """A question to user code that a person has to answer something for first: it raised a pause.

    Attributes:
        message: what the person is asked.
        fault: what it is where no one can be asked.
        role: which code asks, at `path`.
    """

    def __init__(self, message: str, fault: Fault, call: CallUserCode) -> None:
        super().__init__(message)
        self.message, self.fault, self.role, self.path = message, fault, call.role, call.path
