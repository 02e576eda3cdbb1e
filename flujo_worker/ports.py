"""The ports of the engine: its operations on services. One conformance suite tests every implementation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Required, TypeAlias, TypedDict, Unpack

from flujo_client.contract.carry_on import RunState
from flujo_client.contract.code import CODE_CHANGED, ParkCause
from flujo_client.contract.records import AttemptRecord, RunRecord, ScopeRecord
from flujo_client.frozen import frozen
from flujo_client.pipeline.context_info import Fields
from flujo_worker.domain.carry_on import PlanMove
from flujo_worker.domain.retention import RetentionRule
from flujo_worker.domain.units import BatchedRequest, HeldBatch, RecordedUnit, RequestState, SettledUnit, Unit
from flujo_worker.domain.values import ChildRunRow, Decision, ScopeRow
from flujo_worker.errors import Unreadable

if TYPE_CHECKING:
    from datetime import datetime

    from flujo_client.contract.code import AwaitedCode, CodeOnRecord, CodeVersion
    from flujo_client.contract.envelope import Envelope
    from flujo_client.contract.limits import GuardRow
    from flujo_client.contract.outcome import Event, Fault, Usage
    from flujo_client.plan.plan import Plan
    from flujo_client.serial import Packed
    from flujo_client.transport.loop_publisher import Taken
    from flujo_worker.domain.budget import Reservation
    from flujo_worker.domain.ended import AnyEnded, AttemptEvent, EndedAttempt, Export, Kind, Position
    from flujo_worker.domain.permit import PermitRequest
    from flujo_worker.domain.schedules import DueSchedule, Fired

Refusal = Literal[
    "unknown", "mismatched", "moved", "ended", "busy", "unleased", "stopped", "parked", "suspect", "locked"
]
Room = Literal["shared", "apart", "alone"]
"""Where a claimed attempt runs: with others, in a separate process, or alone in its worker and that worker's children."""
Verdict = Literal["merged", "repeated", "stale", "stopped", "unstored"]
MoveVerdict = Literal["moved", "changed", "older"]


FanOutPlace = tuple[str, str]
"""A run and the address of a fan-out in it."""


class PlanName(NamedTuple):
    """The pipeline that a run was started with."""

    reference: str
    fingerprint: str


class ClaimId(NamedTuple):
    """One claim of an attempt, whose spend is recorded once. Without a fence the attempt, without a `claim_id` any claim of that fence."""

    key: str
    fence: int | None = None
    claim_id: str | None = None


class ClaimTerms(TypedDict, total=False):
    """On what terms an attempt is claimed; by default in a shared room, and with no reservation."""

    max_lost: Required[int]
    may_judge: bool
    """Whether it may be taken from a worker whose lease is over; True by default."""
    room: Room
    """An attempt that was lost `SUSPECT_AFTER` times is refused as `suspect` to a `shared` room. Lost in the room `alone`, the loss is the attempt's
    own; in the others only if a living process disowned it."""
    plan: PlanName | None
    """What its message names. If its run is another pipeline's, the claim is refused as mismatched and changes nothing; if the run has come under
    another plan since the message was sent, as moved."""
    fan_outs: Sequence[str]
    """Those that it is in, for the answer's `aborted`."""
    to_reserve: Sequence[Reservation]
    """Reserved whole or not at all, in the same act. A reservation that it holds already is used instead."""


@frozen
class Claim:
    """The answer to a claim: the fence to work under, or why not.

    `aborted`: a fan-out the attempt is in was aborted, so the attempt closes itself without being performed.
    `over`: why a budget refused the reservation, so the attempt is concluded as limit without being performed.
    `in_company`: how often a suspect was lost without having been alone.
    `claim_id`: drawn at random for this claim. A crash of Postgres may lose a claim, and the next one then has the same fence.
    """

    fence: int | None = None
    refusal: Refusal | None = None
    aborted: bool = False
    over: Fault | None = None
    in_company: int = 0
    claim_id: str | None = field(default=None, compare=False)


@frozen
class Committed:
    """The answer to a commit.

    `taken`: the sibling's first attempt that got the lane of the branch that closed.
    `breach`: why the first run of the tree must stop: the spend of this attempt has passed a limit.
    `claim_id`: of the claim of the attempt that follows, if the decision asked for one and it could be made; its fence is 1.
    `over`: why a budget refused that claim's reservation, as in `Claim`.
    `given`: the attempts that were given an event in the same transaction: they are due, but not published.
    `must_signal`: whether the join of the branch that closed is to be signalled, by all that was committed before this: a fan-out around it is
    aborted or, where no chord counts, it was the last of its fan-out. None: that is not known.
    """

    verdict: Verdict
    taken: str | None = None
    breach: Fault | None = None
    claim_id: str | None = None
    over: Fault | None = None
    must_signal: bool | None = None
    given: Sequence[str] = ()


@frozen
class HumanAnswer:
    """A person's answer, or an event: the value, who, why, and when in unix seconds; `waited_s` is how long the question had waited for an event."""

    value: Packed
    actor: str | None
    note: str | None
    at: float
    waited_s: float = 0.0


@frozen
class Reply:
    """The result of a question; without an answer it expired."""

    question: Mapping[str, Any]
    answer: HumanAnswer | None


Replies: TypeAlias = "Callable[[], Sequence[Reply]]"
"""Reads what came of the questions at one place, in their order."""


@frozen
class PendingHookCall:
    """A hook call that has not been made yet: a run has ended, or a question of it is open (ADR 22).

    Attributes:
        payload: `post_run` or `on_pause_requested`.
        attempt: the question's work row; empty for the run's end.
        reference, fingerprint, root: the run's, as in its ticket.
        losses: the number of processes it was lost with, when it was read.
        losses_alone: the number of those that ran nothing else.
    """

    run: str
    payload: str
    attempt: str
    reference: str
    fingerprint: str
    root: str
    losses: int = field(default=0, compare=False)
    losses_alone: int = field(default=0, compare=False)


@frozen
class Records:
    """A run's rows, as its result is made of them."""

    run: RunRecord
    attempts: Sequence[AttemptRecord]
    scopes: Sequence[ScopeRecord]


@frozen
class Member:
    """One worker process in one incarnation.

    `build` is Flujo's version, `code_build` the user's name for the code that it has; `queues` are those that it consumes, None if that is not known.
    """

    id: str
    host: str
    pid: int
    build: str
    slots: int
    code_build: str | None = None
    queues: tuple[str, ...] | None = None


class Renewal(NamedTuple):
    """The answer to the renewal of a lease.

    Attributes:
        lost: the attempts that must no longer run.
        is_to_stop: whether the worker was asked to stop.
        sharing: how many live workers consume one of its queues, itself included.
    """

    lost: set[str]
    is_to_stop: bool = False
    sharing: int = 1


@frozen
class Due:
    """A message to publish again, and why: ready, lost, epoch or gone. `fence` is that of the attempt's last claim, 0 before the first."""

    why: str
    envelope: Envelope
    fence: int = 0


class PoisonedAttempt(NamedTuple):
    """An attempt that was lost too often, the fence it was taken under, and how its last process ended, if that is known."""

    envelope: Envelope
    fence: int
    how: str | None = None


@frozen
class BrokerSnapshot:
    """The state of the broker in a sweep: when its epoch began and when each queue's head was sent (None: it is empty).

    Times are unix seconds; a queue that could not be read is missing.
    """

    epoch_start: float
    heads: Mapping[str, float | None]


class Admitted(NamedTuple):
    """The keys of first attempts to publish, and the gates that another admission should look at soon."""

    keys: Sequence[str] = ()
    again: Collection[str] = ()


Publish = Callable[[Sequence[Due]], None]


Damaged = Callable[[str, str, int | None, Unreadable], object]
"""Called with a work row that cannot be read: its run, its key, the fence it was taken under, if it was, and why."""


def ignore(*_: object) -> None:
    """Do nothing: for callers that only look."""


class LeaseStore(Protocol):
    """The leases of workers, by the store's clock."""

    def register_worker(
        self, member: Member, lease_s: float, *, old: str | None = None, held: Collection[str] = ()
    ) -> set[str]:
        """Begin an incarnation; adopt those of the `held` attempts that still point to `old`, and return them."""

    def renew(self, worker: str, lease_s: float, held: Mapping[str, int]) -> Renewal | None:
        """Extend the lease. Return the state of the held attempts (key → fence); None: the lease is over."""

    def lost_among(self, worker: str, held: Mapping[str, int]) -> set[str]:
        """Return which of the held attempts (key → fence) must no longer run; changes nothing."""

    def release_unowned(
        self, worker: str, kept: Collection[str], older_s: float, *, how: str | None = None
    ) -> set[str]:
        """Release attempts, claimed longer ago than `older_s`, that point to this worker and are not among the `kept`.

        Each loss counts against the attempt: a live process reports it, either the worker itself or one that saw `how` it died.
        """

    def hand_back(self, worker: str, keys: Collection[str], *, is_broken: bool = False) -> set[str]:
        """Release those of the attempts that this worker works on, or has a message of; return them, to be published at once.

        They retain their numbers, and none counts as lost; but one that was handed back very often is left to a sweep, which counts a loss.
        With `is_broken`, one of those that it works on may have broken it: each becomes a suspect as by a loss.
        """

    def deregister_worker(self, worker: str) -> None:
        """End the incarnation; its remaining attempts may be taken at once."""

    def neighbours(self, host: str) -> list[tuple[str, int]]:
        """List the workers of a host that have not ended and run something, regardless of their leases: id and pid."""

    def bury(self, worker: str, max_lost: int) -> set[str]:
        """End a worker whose process is known to be gone; return its attempts that may be lost again, to be sent at once."""


class AttemptStore(Protocol):
    """Claims attempts, merges their outcomes, and defers them."""

    def claim(self, key: str, worker: str, **terms: Unpack[ClaimTerms]) -> Claim:
        """Take an attempt and raise its fence; refused as `locked`: somebody else's transaction holds its rows."""

    def locked_among(self, keys: Sequence[str]) -> set[str]:
        """Return the attempts whose rows, or their scopes' or runs', somebody else's transaction holds: a claim or a merge would wait."""

    def locked_budgets(self, scopes: Collection[str]) -> set[str]:
        """Return the budgets whose rows somebody else's transaction holds."""

    def lock_holders(self) -> tuple[str, ...]:
        """Describe the sessions that may hold the rows that were last found locked."""

    def commit(self, decision: Decision) -> Committed:
        """Apply all of a decision, or none of it if the attempt is not running under the notice's fence.

        `unstored`: a value that was stored for it is gone, as after a failover to a lagging replica; nothing was merged, and the outcome is
        still wanted.

        Under limits, the spend is settled with it; passing a limit fails the root run of the tree. Repairs of the outcome go into the
        correction ledger with it; an outcome without repairs never touches that.

        Raises:
            RowLocked: somebody else's transaction holds one of its rows; nothing was merged, and the outcome is still wanted.
        """

    def spend(self, run: str, claim: ClaimId, usage: Usage, reserved: Sequence[Reservation] = ()) -> None:
        """Record what an outcome that was not merged has cost, in its budgets too; once for each claim of an attempt.

        `reserved` is what the claim reserved: after a failover to a lagging replica, budgets and reservations may be missing.
        """

    def spent_lately(self, reference: str, runs: int) -> list[tuple[str, Usage]]:
        """Read what the attempts of a pipeline's latest `runs` have spent: key and sum of each that spent, the latest first."""

    def defer(
        self, claim: ClaimId, delay_s: float, event: Event | None = None, *, waits_for: str | None = None
    ) -> bool:
        """Return an attempt that has made no call, to be published again after that many seconds; it retains its number.

        The reservation of this claim is released too. `event` is written once for each attempt, however often it is deferred. `waits_for`
        names a limit or the guard of a model, see `flujo_client.contract.limits.waits_for`; it waits since it was first deferred for it.
        False: it was not running under that claim.
        """

    def return_starved(self, claim: ClaimId, delay_s: float, event: Event, *, most: int) -> bool:
        """Return an attempt whose process was starved, to be published again after that many seconds; it retains its number.

        Its reservation stays. `event` is written with `times`, how often that has happened to the attempt. False: that were more than
        `most` times, or it was not running under that claim.
        """

    def postpone(self, key: str, delay_s: float) -> None:
        """Schedule an unclaimed attempt, whose message is used up, to be published again after that many seconds."""

    def break_off(self, run: str, fault: Fault, event: Event | None = None, at: ClaimId | None = None) -> bool:
        """Mark a live run to be wound down as failed, with this error, and record why.

        If `at` has a fence, that claim must still be the attempt's. False: it is not, or the run has ended or is wound down already.
        """


class ScopeStore(Protocol):
    """A run's scopes: the reads of decisions, and the operations of a fan-out beyond a merge."""

    def scope(self, run: str, address: str) -> ScopeRow | None:
        """Read one scope."""

    def children(self, run: str, address: str) -> list[ScopeRow]:
        """Read a scope's children in their order, without their contexts."""

    def signal_join(self, run: str, address: str, queue: str, by: str) -> bool:
        """Create the join's work row if all branches are closed and no child run is live; return whether it exists and is live.

        The address is that of the fan-out, or of the import that waits for a child run. `by` is who signals: chord, worker or sweeper; recorded
        in the event `join.rung` if this signal created the row.
        """

    def child_run(self, run: str) -> ChildRunRow | None:
        """Read a run that a place in another one waits for; None for any other."""

    def aborted_among(self, fan_outs: Collection[FanOutPlace]) -> set[FanOutPlace]:
        """Return which of these fan-outs were aborted."""

    def closed_among(self, fan_outs: Collection[FanOutPlace]) -> set[FanOutPlace]:
        """Return which of these fan-outs have no open branch."""

    def wind_down_branches(self, run: str, fan_out: str) -> None:
        """Cancel what waits to run in an aborted fan-out, and close every scope that nothing running is in."""

    def is_last_of_lane(self, run: str, branch: str, key: str) -> bool:
        """Return whether this attempt closed that branch and the lane it left is empty: a redelivery must know that."""

    def missed_joins(self, limit: int, older_s: float) -> list[tuple[str, str]]:
        """Return fan-outs and imports (run, address) that stopped waiting longer ago than that, and have no work row to join."""

    def aborted(self, limit: int) -> list[tuple[str, str]]:
        """Return aborted fan-outs (run, address) that still wait for branches."""

    def idle_lanes(self, limit: int) -> list[tuple[str, str, int]]:
        """Return the lanes (run, address, lane) of fan-outs whose branches wait for a lane while none runs in one: a merge gave none, because of a lock."""

    def give_lane(self, run: str, fan_out: str, lane: int) -> None:
        """Give a lane in which nothing runs to the next branch that waits for one."""

    def orphaned_children(self, limit: int) -> list[str]:
        """Return live child runs that no run waits for any more: their parent is stopped, or has closed the place that began them."""

    def stranded(self, limit: int) -> list[str]:
        """Return live runs that nothing can move: no attempt is live or waits, no child run is waited for, and no join can be signalled."""


class BacklogStore(Protocol):
    """The queries of the sweeper."""

    def mark_sent(self, ages: Mapping[str, float]) -> None:
        """Mark messages as sent: key → seconds since just before the send. A row that was claimed since is left as it is."""

    def begin_sweep(self, worker: str, every_s: float) -> bool:
        """Return whether it is this worker's turn."""

    def epoch_start(self, epoch: str) -> float:
        """Return when this epoch of the broker was first seen, in unix seconds."""

    def queues(self) -> list[str]:
        """Return the queues that sent and unclaimed attempts are in."""

    def due(
        self,
        broker: BrokerSnapshot,
        *,
        judge: str | None,
        max_lost: int,
        limit: int,
        publish: Publish = ignore,
        damaged: Damaged = ignore,
    ) -> list[Due]:
        """Mark what is to be published again, publish it, and return it; a row passed to `damaged` is marked and not published.

        Attempts are lost whose worker has no lease, if `judge`, the calling worker, still has one: both may have been suspended together.
        `publish` is called inside the transaction that marks: a worker that dies in between only doubles, and if it raises nothing is
        marked.
        """

    def envelopes(self, keys: Collection[str]) -> list[Envelope]:
        """Rebuild the messages of work rows. One that cannot be read is left out: a sweep finds it due, and fails its run."""

    def hand_over_events(self, limit: int) -> int:
        """Give the events of runs to the steps that wait for them, and return how many were given.

        Events of one name are given in the order in which they were sent, each to one step, first to the one that has waited longest. Each step that
        gets one is due as an attempt with an answer.
        """

    def expire_questions(self, limit: int) -> int:
        """Close questions whose time is over: from now on they cannot be answered, and are due as attempts without an answer."""

    def poisoned(self, *, judge: str, max_lost: int, limit: int, damaged: Damaged = ignore) -> list[PoisonedAttempt]:
        """Take, each under a fresh fence, attempts that were lost alone more often than is allowed; `damaged` gets those that cannot be read.

        Nothing is taken unless `judge`, the calling worker, has a lease.
        """

    def runs_to_stop(self, limit: int) -> list[tuple[str, Literal["cancelled", "expired", "failed"]]]:
        """Return runs that must be wound down."""

    def stop(self, run: str, status: Literal["cancelled", "expired", "failed"], reason: str) -> bool:
        """Wind a run down. Once it returns, nothing merges and no live attempt is left. False: it had ended already."""


class BlobStore(Protocol):
    """Large values, by digest."""

    def store(self, blobs: Sequence[Packed]) -> None:
        """Store values by digest."""

    def fetch(self, digests: Collection[str]) -> dict[str, Packed]:
        """Read values by digest; a missing one is left out."""


class RecordStore(Protocol):
    """A run's answers and events, and the run as it is read whole."""

    def reply(self, key: str) -> Reply | None:
        """Read the result of the question that an attempt waited with; None for an attempt that asked no question."""

    def replies(self, run: str, address: str, step: str) -> list[Reply]:
        """Read the answers at a step of a run, in the order of the questions."""

    def note(self, run: str | None, events: Sequence[Event], *, key: str | None = None) -> None:
        """Append lines outside a merge: to a run's events, or, without a run, to those of workers."""

    def read(self, run: str) -> Records:
        """Read a run."""


class CodeStore(Protocol):
    """Plans, versions of code, and the former fields of context models."""

    def plan(self, fingerprint: str) -> Plan | None:
        """Read a plan; raises Unreadable, as every method does that reads what a run depends on."""

    def context_fields(self, model: str, digest: str, fields: Fields) -> list[Fields]:
        """Record the fields that a context model has, under their digest, and read those that it had before."""

    def former_models(self, fingerprint: str) -> frozenset[str]:
        """Return the names of the other context models that plans of a plan's pipeline have."""

    def plans_of_run(self, run: str) -> list[tuple[str, str]]:
        """Read the fingerprints and versions of the plans that a run went by: the present one, then the others, the latest first; then those of the run it was forked from."""

    def store_code(self, versions: Sequence[CodeVersion]) -> None:
        """Store versions of code by digest."""

    def store_code_of_steps(self, fingerprint: str, steps: Mapping[str, CodeVersion]) -> None:
        """Store versions of code, and that steps of a plan, by their paths, have them now."""

    def versions(self, digests: Collection[str]) -> dict[str, CodeVersion]:
        """Read versions of code by digest; a missing one is left out."""

    def adopt_plan(self, reference: str, plan: Plan, worker: str | None) -> None:
        """Store a plan whose code a worker has, though no run uses it yet."""

    def note_plan(self, worker: str, fingerprint: str, build: str | None) -> None:
        """Record that a worker has the code of a plan, and to which build of the user's code that belongs; the last build counts."""

    def code_on_record(self, run: str, fingerprint: str) -> CodeOnRecord:
        """Read which code a run's steps were performed with, and which one workers last had for its plan and for the plan of a fingerprint."""


class PlanMoveStore(Protocol):
    """Runs that continue under changed code (ADR 37), or wait for it."""

    def run_state(self, run: str) -> RunState | None:
        """Read a run's state; None if there is no such run."""

    def carry_on(self, reference: str, move: PlanMove) -> MoveVerdict:
        """Move a run to another plan with all that is open, or change nothing.

        Returns:
            moved: done. changed: the run has moved on meanwhile. older: the worker was started before the run's plan was taken up.
        """

    def has_able_worker(self, run: str, fingerprint: str | None, queue: str, *, but: str) -> bool:
        """Return whether a live worker other than `but` can take a run: it has the code of that plan, or was the last to let the run continue.

        A worker that stops, or does not consume the queue, takes nothing.
        """

    def has_other_build(self, run: str, key: str, queue: str, *, worker: str) -> bool:
        """Return whether a live worker with another build of the user's code than `worker` may have a module that is missing there.

        Not if one with another build has given the attempt back for that already.
        """

    def park(
        self, claim: ClaimId, reason: str, *, cause: ParkCause = CODE_CHANGED, code: AwaitedCode | None = None
    ) -> bool:
        """Let the run wait for a worker that can continue it; the attempt is released. `code`: it waits for bodies, not for its plan."""

    def parked(self, limit: int, but: Collection[str] = ()) -> list[tuple[str, str, str]]:
        """Return runs that are parked for their plan: id, reference, fingerprint; the oldest of each pipeline first, then the second oldest of each, and so on."""

    def parked_for_code(self, limit: int) -> list[tuple[str, str, str, AwaitedCode]]:
        """Return runs that are parked for bodies of functions: id, reference, fingerprint and what they wait for; in the order of `parked`."""

    def unpark(self, run: str, worker: str) -> bool:
        """Let a parked run continue, which this worker can perform."""


class HookCallStore(Protocol):
    """The hook calls after a commit. A call is pending from the commit that ended the run or opened the question until it is settled."""

    def pending(self, worker: str, limit: int, *, may_judge: bool = True) -> list[PendingHookCall]:
        """Read the calls that no other worker has: not taken, taken by this worker, or by one whose lease is over if that may be judged."""

    def take(self, call: PendingHookCall, worker: str, *, may_judge: bool = True, room: Room = "shared") -> int | None:
        """Take a call, and return the number of processes it was lost with that ran nothing else; None if it is settled or taken."""

    def release(self, call: PendingHookCall, worker: str, *, losses: int) -> None:
        """Release a call that this worker has taken, and count so many losses as its own."""

    def settle(self, call: PendingHookCall, worker: str) -> None:
        """Record that the hooks were called, unless another worker has taken the call since."""


class AdmissionStore(Protocol):
    """Runs that wait to begin (ADR 43)."""

    def admit(self, ended: Collection[str] | None = None, *, again: Collection[str] = ()) -> Admitted:
        """Release the places of runs that have ended, and let waiting runs pass gates with room.

        `ended`: runs that have ended just now; None: find all places that are no longer held. `again`: gates to check besides theirs.
        """


class LimitStore(Protocol):
    """Concurrency limits of attempts, by name, and the fleet's settings of circuit breakers and rate limits (ADR 36).

    A permit lasts while its attempt runs under its fence and lease.
    """

    def request_permit(self, request: PermitRequest) -> bool:
        """Let an attempt run, or return it to wait for a place as `defer` does; return whether it may run.

        One that asks for the first time leaves free places to those that wait.
        """

    def release_permit(self, key: str, fence: int, name: str) -> list[str]:
        """Forget an attempt that no longer runs under a fence; return the attempts to publish, in the order of their requests."""

    def offer_permits(self) -> list[str]:
        """Return the attempts to publish because places are free, as after the death of a worker that did not release them."""

    def guard_rows(self) -> list[GuardRow]:
        """Read all of them."""

    def write_file_settings(self, rows: Sequence[GuardRow]) -> None:
        """Record the settings of a file in place of those of earlier files; the settings of operators stay above them."""


class PrunedUnits(NamedTuple):
    """How many units are gone, and the last run and place that were looked at if there may be more."""

    gone: int
    after: tuple[str, str] | None


class RetentionStore(Protocol):
    """Deletes what has outlived its retention, but nothing live and nothing that live runs refer to."""

    def begin_pruning(self, every_s: float) -> bool:
        """Return whether it is the caller's turn to delete: once in so many seconds, for the whole fleet."""

    def prune_runs(
        self, rules: Sequence[RetentionRule], limit: int, *, is_summarized: bool = False, waits_s: float = 0.0
    ) -> list[str]:
        """Delete runs that ended longer ago than the rules retain them, with all their rows; return their ids.

        A run is deleted together with all its child runs, including those in the background, once the youngest of them is old enough, by
        the status of the root run. So many runs are deleted, more only to complete the last family. A run that is being retried is left for
        the next time. With `is_summarized`, a summary of each stays. Runs that are not exported yet stay up to `waits_s` seconds longer.
        """

    def prune_summaries(self, older_s: float, limit: int) -> None:
        """Delete summaries of runs that ended longer ago than so many seconds: at most so many, the oldest first."""

    def sweep_blobs(self, limit: int, *, every_s: float, unused_s: float) -> bool:
        """Take one step of the search for large values that nothing refers to; return whether there is another step to take now.

        Args:
            limit: how many runs, or large values, one step looks at.
            every_s: seconds from the beginning of one search to the next.
            unused_s: seconds before the search began for which no one may have stored or shared a value that is deleted.
        """

    def prune_units(
        self, older_s: float, after: tuple[str, str] = ("", ""), *, places: int, units: int, waits_s: float = 0.0
    ) -> PrunedUnits:
        """Delete units of durable steps that have ended, at least so many seconds ago, and whose claims' spends are booked.

        `after` is the run and place after which to look, `places` how many places to look at, `units` how many to delete at most. Those that
        are not exported yet stay `waits_s` seconds longer.
        """

    def prune_gates(self) -> None:
        """Delete gates that no run has come to for an hour, and that none is at."""

    def prune_bookkeeping(self, older_s: float) -> int:
        """Delete workers whose lease ended, broker epochs before the present one, and tenants' budgets of days, older than that; return how many."""

    def rotate_event_partitions(self, keep_days: int | None) -> None:
        """Make place for the events of the days to come, and drop those of days that are over; None: never."""

    def tally(self, lag_s: float = 20.0) -> bool:
        """Add what ended longer ago than that to the counters that outlive its rows; return False if there is more to add now."""


class UnitStore(Protocol):
    """The calls of durable attempts on record, while their claims are live."""

    def recorded(self, run: str, places: Collection[str]) -> list[RecordedUnit]:
        """Read the units of these places."""

    def begin(self, units: Sequence[Unit]) -> set[Unit]:
        """Announce units that are about to be asked; return those that may be.

        A unit that has no answer is taken over from the claim that began it. Refused are those of a claim that is over, and answered ones.
        """

    def reserve(self, unit: Unit, holds: Sequence[Reservation]) -> Fault | None:
        """Announce a request of a claim under limits, which then holds so much of its budgets; return why not, if that is more than is left."""

    def settle(self, settled: Sequence[SettledUnit]) -> set[Unit]:
        """Record answers, of announced units and of others, and book their cost; return the units of which this was the answer.

        Under limits the cost is settled; passing a limit fails the root run of the tree. Refused are those of a claim that is over, and those that have an answer.
        """


class BatchStore(Protocol):
    """The requests of durable attempts that are asked in batches, pooled over runs and workers."""

    def ask(self, request: BatchedRequest) -> RequestState:
        """Let a request wait for a batch, unless it does so already; return what has become of it."""

    def take(
        self, pool: str, claim: ClaimId, *, wait_s: float, most: int, most_bytes: int | None = None
    ) -> HeldBatch | None:
        """Take a batch of the pool in hand, while this claim runs; None if there is nothing to do.

        That is one that is due and that no running claim has, else a new one of at most so many requests, if there are as many or one has waited
        `wait_s` seconds.
        """

    def requests(self, batch: str) -> list[tuple[str, Packed]]:
        """Read the requests of a batch: their ids and bodies."""

    def put_back(self, batch: str, claim: ClaimId, handle: Mapping[str, Any] | None, *, after_s: float) -> None:
        """Put a batch out of hand for so many seconds, with what the provider calls it if that is known."""

    def end(self, batch: str, results: Mapping[str, Packed], rest: Packed) -> None:
        """Give the requests of a batch their results, and the rest this one; the attempts that wait for them are due."""


class ScheduleStore(Protocol):
    """The schedules, whose slots a sweep fires."""

    def due(self, limit: int) -> list[DueSchedule]:
        """Read schedules whose next slot is due and that are not paused, the longest due first."""

    def advance(self, due: DueSchedule, fired: Fired) -> bool:
        """Record what has become of a schedule's due slots; return False if its next slot is another by now."""


class ExportStore(Protocol):
    """What has ended, for one exporter of traces in the fleet, and up to where that has sent it."""

    def begin(self, worker: str, *, patience_s: float, margin_s: float) -> Export | None:
        """Export from now on; None while a living worker does that was here in the last `patience_s` seconds.

        What ended in the last `margin_s` seconds is left to the next turn.
        """

    def ended(self, kind: Kind, since: Position, until: datetime, limit: int) -> list[AnyEnded]:
        """Read the next rows of a kind, in the order of their ends."""

    def events(self, attempts: Sequence[EndedAttempt], names: Sequence[str]) -> dict[str, list[AttemptEvent]]:
        """Read events of these names by attempt, in their order."""

    def advance(self, worker: str, positions: Mapping[Kind, Position], *, refused: int) -> bool:
        """Record up to where rows were sent; return False if another worker exports by now."""


@dataclass(eq=False)
class Stores:
    """The small stores that runs need: in Postgres, or in memory."""

    leases: LeaseStore
    attempts: AttemptStore
    scopes: ScopeStore
    backlog: BacklogStore
    blobs: BlobStore
    records: RecordStore
    code: CodeStore
    plan_moves: PlanMoveStore
    hook_calls: HookCallStore
    admission: AdmissionStore
    limits: LimitStore
    units: UnitStore
    batches: BatchStore


@dataclass(eq=False)
class WorkerStores(Stores):
    """Those of a worker process, which also deletes what has aged, exports traces and fires schedules."""

    retention: RetentionStore
    exports: ExportStore
    schedules: ScheduleStore


class Publisher(Protocol):
    """The way out to the broker.

    Attributes:
        counts_chords: whether the parts of chords are counted, so that the last one signals the join of its fan-out (ADR 9). Otherwise each
            worker looks in the store whether the branch that it closed was the last.
    """

    counts_chords: bool

    def send(self, envelopes: Sequence[Envelope], *, first: bool = False) -> None:
        """Publish each envelope as one message; raises DispatchError if the broker does not accept them.

        With `first` they go to the front of the queue. Work in a fan-out is always a part of its chord, if chords are counted.
        """

    async def push(self, envelopes: Sequence[Envelope], *, take: int = 0) -> Sequence[Taken]:
        """Publish as `send` does, on an event loop, always the same one; return at most `take` messages of the list that they go to."""

    def put_back(self, message: bytes, like: Envelope) -> None:
        """Put back a message that was taken when this envelope was published; raises DispatchError."""

    def open_chord(self, run: str, fan_out: str, lanes: int) -> None:
        """Write how many parts the fan-out's chord waits for, before its members go out; raises DispatchError."""

    def epoch(self) -> str:
        """Return the broker's present epoch, a new one if Redis has lost it."""

    def heads(self, queues: Collection[str]) -> dict[str, float | None]:
        """Return when each queue's next message was sent, in unix seconds; None: it is empty."""
