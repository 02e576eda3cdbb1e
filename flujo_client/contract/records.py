"""A run as it is recorded and read back: values between the modules that access Postgres and all others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from flujo_client.errors import ClientError

if TYPE_CHECKING:
    from flujo_client.contract.admission import Gate
    from flujo_client.contract.envelope import AttemptKind, Envelope
    from flujo_client.contract.outcome import Correction, Fault
    from flujo_client.plan.plan import Plan
    from flujo_client.serial import Packed

LIVE_RUN = ("queued", "running", "parked", "paused")
"""The statuses of a run that has not ended. `paused` is in no row: a run with an open question is shown as paused."""
LIVE_ATTEMPT = ("ready", "queued", "running")
OPEN_ATTEMPT = (*LIVE_ATTEMPT, "paused")
RUN_STATUSES = ("queued", "running", "paused", "parked", "succeeded", "failed", "cancelled", "expired")
_ORIGINAL_STATUSES = {"completed": "succeeded", "unknown": "unknown"}
"""The statuses that the original calls by another name; no run's status is unknown."""
SEQUENCE = "sequence"
CODE = "flujo.code"
"""The key of a scope's metadata with the code versions of its conversation; it is not shown there."""


def without_code(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scope's metadata as people are shown it."""
    return {key: value for key, value in metadata.items() if key != CODE}


def read_status(word: str) -> str:
    """Return the status that a word means, this project's or the original's; raises ClientError for any other word."""
    if word in RUN_STATUSES:
        return word
    if word not in _ORIGINAL_STATUSES:
        choices = ", ".join((*RUN_STATUSES, *_ORIGINAL_STATUSES))
        raise ClientError(f"`status` must be one of {choices}, got {str(word)[:40]!r}")
    return _ORIGINAL_STATUSES[word]


def read_statuses(words: str | Collection[str]) -> tuple[str, ...]:
    """Return the statuses that one word, or several, mean; raises ClientError as `read_status` does."""
    return tuple(dict.fromkeys(map(read_status, [words] if isinstance(words, str) else words)))


@dataclass(frozen=True, slots=True)
class NewRun:
    """All that enqueue records, in one commit: the run, its root scope and its first attempt."""

    first: Envelope
    """The first attempt's envelope, as it will be published."""
    plan: Plan
    digest: str
    """The digest of pipeline, input and context; it distinguishes a repeated enqueue from another one under the same key."""
    blobs: tuple[Packed, ...] = ()
    """Values above the inline limit, which the envelope only points at."""
    idempotency_key: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    """The gates that the run must pass before its first message is published."""
    key_marks: tuple[str, ...] = ()
    """The marks of the client's keys, by which workers recognise another secret under the same id."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One row of `flujo_runs`, with the totals summed at reading, its child runs' included."""

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
    """The run that this run is a step of."""
    limits: dict[str, Any] | None = None
    """The limits that it shares with all runs of its tree, as `UsageLimits` is written; None without such limits."""
    aros: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] | None = None
    """`aros`, `settings`: the project's `[aros]`, and its other settings that differ from the defaults, as they were when it was
    enqueued."""
    is_background: bool = False
    """The parent run does not wait for this run."""
    retry_of: str | None = None
    """The background run that this run starts again; `retries` counts such restarts up to and including this run."""
    retries: int = 0
    forked_from: str | None = None
    """The run that this run retries or was forked from, at the step `from_step`."""
    from_step: str | None = None
    retried_as: str | None = None
    """The run that last retried this run, or was last forked from it after its end."""
    parked: Mapping[str, Any] | None = None
    """Why it is parked, or was when it ended: a `kind`, `what` of that kind, and the time `at`; None if it is not."""
    failed_key: str | None = None
    """The key of the attempt whose error ended it, in this run or a child run; None if no attempt failed."""
    replaced_by: str | None = None
    """The run that it was cancelled for."""
    waits_for: str | None = None
    """The gate that it waits at before its first step, in words; None for a run that was admitted."""
    unreadable: str | None = None
    """The parts of its row that could not be read, in words; None if all could."""
    tokens: int = 0
    cost_usd: float = 0.0

    @property
    def is_live(self) -> bool:
        """Return whether the run can still move."""
        return self.status in LIVE_RUN


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The summary of a run that retention deleted: a row of `flujo_deleted_runs`."""

    id: str
    name: str
    tenant: str
    status: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime
    parent_run: str | None
    """The run that it was a step of, or that launched it in the background."""
    tokens: int
    cost_usd: float
    """`tokens`, `cost_usd`: its spend with its child runs, except those in the background."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The beginning of a background run: its context, and the place of its first attempt, whose key is `first`."""

    context: Packed | None
    first: str
    address: str
    step: str
    kind: str


@dataclass(frozen=True, slots=True)
class BackgroundRestart:
    """A background run to start again."""

    run: str
    """The id of that run."""
    new: str
    """The new run's id."""
    first: str
    """The key of that run's first attempt; `key` is the key of the new run's first attempt."""
    key: str
    context: Packed | None
    """The context with which the new run begins."""
    input: Packed | None = None
    """The input of the new run; None: that of the old run."""
    wait_s: float = 0.0
    """Seconds until the new run begins."""
    blobs: tuple[Packed, ...] = ()
    """Values above the inline limit, which `context` and `input` only point at."""


@dataclass(frozen=True, slots=True)
class ScopeRecord:
    """One row of `flujo_scopes`."""

    address: str
    status: str
    opened_at: datetime
    parent: str | None = None
    kind: str = SEQUENCE
    """`sequence` if it runs nodes in order, else the container's kind."""
    step: str | None = None
    """The name of the container's node, on its own scope and on its children's."""
    name: str | None = None
    """Its name in results; None for the root."""
    place: int = 0
    """Its place among its siblings."""
    output: Packed | None = None
    """Its input while it is open; its result once it has succeeded."""
    context: Packed | None = None
    """Its final context, if it has succeeded and stores one; the root's is the run's."""
    fault: Fault | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    closed_at: datetime | None = None
    lanes: dict[str, int] = field(default_factory=dict)
    """The fan-outs it is in, by address, with its lane in each."""
    tokens: int = 0
    cost_usd: float = 0.0
    """`tokens`, `cost_usd`: the spend of the child run that this scope started, including its own child runs."""


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
    claim_id: str | None = None
    """The id of its last claim; after a success, that of the execution that was merged."""
    sends: int = 0
    waits_for: str | None = None
    waits_since: datetime | None = None
    """`waits_for`, `waits_since`: what keeps it from running, such as `limit crm`, and since when; of no meaning once it runs."""
    room: str | None = None
    """Where it was claimed to run: `alone` in its worker, `apart` in a process of its own; None beside others."""
    loss: Mapping[str, Any] | None = None
    """How its process was last lost: the `worker`, None if that lives and gave it up, `how` its process ended if that is known, and the
    time `at`; None if it was never lost."""
    output: Packed | None = None
    fault: Fault | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    latency_s: float = 0.0
    code: str | None = None
    """The digest of the version of the code that ran it."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    tokens: int = 0
    cost_usd: float = 0.0
    estimate_cost_usd: float | None = None
    estimate_tokens: int | None = None
    """`estimate_cost_usd`, `estimate_tokens`: what the attempt reserved before it ran, or was refused; None if no limits apply."""
    quota_before_usd: float | None = None
    quota_before_tokens: int | None = None
    """`quota_before_usd`, `quota_before_tokens`: the least that one of its budgets had left before that; None without a limit of
    that kind."""


class StepRecord(NamedTuple):
    """An attempt at a step, as a stream shows it."""

    address: str
    step: str
    attempt: int
    status: str
    output: Packed | None


class AttemptValues(NamedTuple):
    """The values of an attempt."""

    input: Packed | None
    """The input of a step's attempt that failed; None for any other."""
    output: Packed | None
    answer: str | None
    """The model's answer that was refused, shortened and without secrets."""


@dataclass(frozen=True, slots=True)
class BudgetRecord:
    """One row of `flujo_budgets`, in US dollars and tokens; None: no limit."""

    scope: str
    """`run:<first run>`, `step:<first run>:<path>` or `tenant:<tenant>:<day>`."""
    limit_usd: float | None
    limit_tokens: int | None
    spent_usd: float
    spent_tokens: int
    """`spent_usd`, `spent_tokens`: the whole spend."""
    reserved_usd: float
    reserved_tokens: int
    overrun_usd: float
    overrun_tokens: int
    """`overrun_usd`, `overrun_tokens`: the part of the spend beyond the limit."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One row of `flujo_events`."""

    id: int
    at: datetime
    """The time of emission, by the emitter's clock."""
    run_id: str | None
    """The run; None for an event of a worker."""
    name: str
    level: str
    attempt: str | None
    data: dict[str, Any]
    cursor: str = ""
    """The position to read on from. Ids cannot serve as one: of two parallel branches' events, the lower id may be committed later."""


@dataclass(frozen=True, slots=True)
class NoticeRecord:
    """A report about one row of work that a coordinator received, and the answers of user code that its decision needed."""

    made: int
    """Its number among the run's rows, which are counted from 1 in the order they were made."""
    key: str
    address: str
    step: str
    number: int
    kind: AttemptKind
    status: str
    reason: str | None
    fault: Fault | None
    queue: str
    answers: tuple[dict[str, Any], ...]
    """The answers of user code, each with the `role` and `path` of the function that gave it."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The beginning of a run, for its replay. It began at `root` in the plan; a retry began there at the step `from_step`."""

    id: str
    status: str
    reference: str
    fingerprint: str
    queue: str
    tenant: str
    root: str
    from_step: str | None
    plan: Plan
    has_context: bool


@dataclass(frozen=True, slots=True)
class CorrectionRecord:
    """One row of `flujo_correction_ledger`: what was repaired in an attempt, and under which fence."""

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
    """The number of attempts it runs at once; 0 for a process that a worker started for one attempt in quarantine."""
    started_at: datetime
    is_live: bool
    queues: tuple[str, ...] | None = None
    """The queues it takes messages from; None: that is not known."""
    is_stopping: bool = False
    """It takes no more work, and ends when its attempts have ended or were handed back."""
    slowed: Mapping[str, Any] | None = None
    """Set while it takes fewer attempts at once because its event loop is late: `at_once`, `of` its slots, and the percentages `late` and
    `waited_for_cpu` of the last second; else None."""
    lacks: tuple[str, ...] = ()
    """The keys that it lacks, or has another secret for, such as `value_keys.2026a`; with any, it takes no work."""
    code_build: str | None = None
    """The build of the user's code, as `flujo worker --build` names it."""
    lease_until: datetime | None = None
    """The end of its lease, as it renewed it last."""
    ended_at: datetime | None = None
    """The time of its orderly end."""

    def serves(self, queues: Collection[str]) -> bool:
        """Return whether it takes messages from one of these queues; assumed of a live worker whose queues are not known."""
        return self.is_live and self.slots > 0 and (self.queues is None or not set(queues).isdisjoint(self.queues))
