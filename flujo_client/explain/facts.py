"""The facts that a sentence about a run is made of, as rows hold them. What a row does not hold, such as one of an older version, is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from flujo_client.contract.envelope import CONTROL_QUEUE
from flujo_client.contract.outcome import Fault
from flujo_client.explain.sentence import Sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRowFacts:
    """A row of `flujo_runs`, and the time `now` at which it was read, by the database's clock."""

    now: datetime
    id: str
    name: str
    reference: str
    status: str
    created_at: datetime
    reason: str | None = None
    fault: Fault | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    deadline_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    canceller: str | None = None
    """The person who requested the cancel, and `cancel_note` the reason that was given."""
    cancel_note: str | None = None
    root: str = ""
    """The address of its root scope."""
    fingerprint: str = ""
    child_of: str | None = None
    """The run whose sentence repeats its own."""
    parked: Mapping[str, Any] | None = None
    replaced_by: str | None = None
    failed_key: str | None = None
    fell_back: str | None = None
    """After a success, a step whose fallback gave its output."""
    is_repaired: bool = False
    """Whether it succeeded with an answer that had to be repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """A row of `flujo_attempts`, with what the plan and other rows say of its place."""

    run_id: str
    key: str
    address: str
    step: str
    number: int
    kind: str
    status: str
    created_at: datetime
    queue: str = ""
    available_at: datetime | None = None
    """When it is due; None: it waits for a lane, or its question stays open."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    worker: str | None = None
    has_lease: bool = False
    """Whether the lease of its worker lasts."""
    losses: int = 0
    losses_alone: int = 0
    loss: Mapping[str, Any] | None = None
    room: str | None = None
    fault: Fault | None = None
    fault_before: Fault | None = None
    """How the attempt before it failed, and `failed_at` when."""
    failed_at: datetime | None = None
    question: Mapping[str, Any] | None = None
    waits_for: str | None = None
    waits_since: datetime | None = None
    latency_s: float | None = None
    max_attempts: int | None = None
    timeout_s: float | None = None
    """`max_attempts`, `timeout_s`: the options of its step, as far as its plan has them."""
    around: str | None = None
    """The kind of the innermost container around it that numbers its children."""
    siblings: int | None = None
    """How many children that container has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFacts:
    """The gate at which a run waits for its admission."""

    name: str
    most: int | None
    taken: int
    ahead: int
    period_s: float | None = None
    """The period of a throttle."""
    wait_s: float = 0.0
    """How long a debounce waits for a newer input, and `not_before` until when."""
    not_before: datetime | None = None
    next_at: datetime | None = None
    """When the next place of a throttle is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFacts:
    """A concurrency limit: the runs that hold a place, the oldest first, and the attempts in its line by their keys, from 0."""

    at_once: int
    holders: tuple[str, ...] = ()
    in_line: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutFacts:
    """How far the outermost open container with branches or items has come."""

    step: str
    total: int
    done: int
    failed: int
    under_way: int


class QueueFacts(NamedTuple):
    """The slots of the live workers that take work from a queue, and how many of them are busy."""

    slots: int = 0
    busy: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFacts:
    """The live workers; none where only ended runs are explained, of whose sentences they are no part."""

    workers: int = 0
    unreported: int = 0
    """How many of them have not reported yet which queues they consume."""
    control_queue: str = CONTROL_QUEUE
    """The queue of the messages that make a run continue after its branches."""
    queues: Mapping[str, QueueFacts] = field(default_factory=dict)
    lacking: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The keys that workers of a queue lack, so that they take no work, by queue."""
    ahead: Mapping[str, int] = field(default_factory=dict)
    """How many older attempts are in the same queue, by the keys of attempts, as far as that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known of one run.

    Attributes:
        live: its attempts that have not ended, at most a few: those first that hold it most.
        failed: the attempt that its error is of, or that was stopped with it.
        gate: where it waits for its admission.
        fan_out: its outermost open container with branches or items.
        limits: the concurrency limits that its attempts wait for, by name.
        child: the id and the sentence of a child run that it waits for, or that it failed with.
    """

    run: RunRowFacts
    fleet: FleetFacts
    live: tuple[AttemptFacts, ...] = ()
    failed: AttemptFacts | None = None
    gate: GateFacts | None = None
    fan_out: FanOutFacts | None = None
    limits: Mapping[str, LimitFacts] = field(default_factory=dict)
    child: tuple[str, Sentence] | None = None

    def lacks_worker(self, queue: str) -> bool:
        """Return whether no live worker takes work from a queue; those that have not reported their queues may."""
        return self.fleet.unreported == 0 and self.fleet.queues.get(queue, QueueFacts()).slots == 0

    @property
    def now(self) -> datetime:
        """Return the database's clock."""
        return self.run.now
