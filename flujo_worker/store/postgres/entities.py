"""The rows that a merge writes, as statements are bound with them: a parameter or an array for each field, named after it.

JSON goes as text. A test compares the fields with the parameters of the statements and with the columns of the tables.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """The end of a run's attempt, under a fence."""

    key: str
    run: str
    fence: int
    claim_id: str | None
    status: str
    reason: str | None
    result: bytes | None
    error: str | None
    metadata: str | None
    latency_s: float
    code: str | None


@dataclass(frozen=True, slots=True)
class EndedRun:
    """The end of a run."""

    status: str
    reason: str | None
    error: str | None
    output: bytes | None


@dataclass(frozen=True, slots=True)
class ScopeUpdate:
    """A change of a scope; `seen` is the version that the decision was made with."""

    address: str
    seen: int
    cursor: int
    status: str
    merges: int
    output: bytes | None
    context: bytes | None
    drops: bool
    patch: bytes | None
    error: str | None
    metadata: str


@dataclass(frozen=True, slots=True)
class NewScope:
    """A row of `flujo_scopes`."""

    address: str
    parent: str | None
    kind: str
    step: str | None
    name: str | None
    place: int | None
    output: bytes | None
    context: bytes | None
    lanes: str
    cursor: int
    status: str
    waiting: bool
    held: bool
    error: str | None
    metadata: str


@dataclass(frozen=True, slots=True)
class NewAttempt:
    """A row of `flujo_attempts`; it is due after so many seconds, or None: when that is not known. `claimed_by`: the worker that has it."""

    key: str
    address: str
    step: str
    number: int
    kind: str
    queue: str
    after_s: float | None
    guidance: str | None
    question: str | None
    status: str
    error: str | None
    claimed_by: str | None


@dataclass(frozen=True, slots=True)
class NewCheckpoint:
    """A row of `flujo_contexts`: the place of a top-level step, and the context it begins with if that is another one."""

    at: int
    context: bytes | None


@dataclass(frozen=True, slots=True)
class NewEvent:
    """A row of `flujo_events`, at a time in unix seconds, or now."""

    name: str
    level: str
    data: str
    at: float | None


@dataclass(frozen=True, slots=True)
class NewSpend:
    """A row of `flujo_spends`."""

    input_tokens: int
    output_tokens: int
    requests: int
    cost_usd: float


@dataclass(frozen=True, slots=True)
class NewChildRun:
    """A row of `flujo_runs` with its root scope and its first work row. `at`: where its parent waits for it."""

    run: str
    at: str | None
    name: str
    input: bytes
    digest: str
    deadline: float | None
    limits: str | None
    root: str
    context: bytes | None
    key: str
    step: str
    kind: str
    queue: str
    after_s: float


@dataclass(frozen=True, slots=True)
class NewCorrection:
    """A row of `flujo_correction_ledger`."""

    step_name: str
    agent_id: str | None
    provider_model: str | None
    schema_hash: str | None
    policy_version: str
    stage: str
    repair_depth: int
    transforms: str
    latency_ms_saved: float
