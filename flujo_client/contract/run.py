"""A run as it is recorded and read back: values between the doors to Postgres and everyone else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from flujo_client.contract.envelope import Envelope
    from flujo_client.contract.outcome import Correction, Fault
    from flujo_client.pipeline.plan import Plan
    from flujo_client.serial import Packed

LIVE_RUN = ("queued", "running", "parked", "paused")
"""What a run is as long as it has not ended. `paused` stands in no row: it is what a run with a question open is seen as (M-449)."""
LIVE_ATTEMPT = ("ready", "queued", "running")
OPEN_ATTEMPT = (*LIVE_ATTEMPT, "paused")
SEQUENCE = "sequence"


@dataclass(frozen=True, slots=True)
class NewRun:
    """All that enqueue records, in one commit: the run, its root scope and its first attempt.

    Attributes:
        first: the first attempt's envelope, as it will be published.
        blobs: values above the inline limit, which the envelope only points at.
        digest: of pipeline, input and context, to tell a repeated enqueue from another one under the same key.
    """

    first: Envelope
    plan: Plan
    digest: str
    blobs: tuple[Packed, ...] = ()
    idempotency_key: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One row of `flujo_runs`, with the totals summed at reading, its child runs' included.

    Attributes:
        parent_run: the run it is a step of.
        forked_from: the run it was forked from by a retry, at the step `from_step`.
    """

    id: str
    reference: str
    fingerprint: str
    name: str
    version: str
    status: str
    created_at: datetime
    tenant: str = ""
    reason: str | None = None
    error: Fault | None = None
    input: Packed | None = None
    output: Packed | None = None
    context: Packed | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    started_at: datetime | None = None
    ended_at: datetime | None = None
    deadline_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    parent_run: str | None = None
    forked_from: str | None = None
    from_step: str | None = None
    tokens: int = 0
    cost_usd: float = 0.0

    @property
    def is_live(self) -> bool:
        """Tell whether the run can still move."""
        return self.status in LIVE_RUN


@dataclass(frozen=True, slots=True)
class ScopeRecord:
    """One row of `flujo_scopes`, without its context.

    Attributes:
        kind: `sequence` for what runs nodes in order, else the container's kind.
        step: the name of the container's node, on its own scope and on its children's.
        name: what it is called in results; None for the root.
        place: its place among its siblings.
        output: its input, as long as it is open; its result once it has succeeded.
        lanes: the fan-outs it stands in, by address, with its lane in each.
        tokens, cost_usd: what the child run that was begun here has spent, with its own child runs.
    """

    address: str
    status: str
    opened_at: datetime
    parent: str | None = None
    kind: str = SEQUENCE
    step: str | None = None
    name: str | None = None
    place: int = 0
    output: Packed | None = None
    fault: Fault | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    closed_at: datetime | None = None
    lanes: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One row of `flujo_attempts`, with what it spent."""

    key: str
    address: str
    step: str
    number: int
    kind: str
    status: str
    created_at: datetime
    reason: str | None = None
    worker: str | None = None
    fence: int = 0
    sends: int = 0
    output: Packed | None = None
    fault: Fault | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    latency_s: float = 0.0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    tokens: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One row of `flujo_events`. `id` is the cursor to read on from."""

    id: int
    at: datetime
    run_id: str
    name: str
    level: str
    attempt: str | None
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CorrectionRecord:
    """One row of `flujo_correction_ledger`: what was repaired in an attempt, and under which fence (M-178)."""

    id: int
    timestamp: datetime
    run_id: str
    attempt: str
    fence: int
    correction: Correction


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One row of `flujo_workers`."""

    id: str
    host: str
    pid: int
    build: str
    slots: int
    started_at: datetime
    is_live: bool
