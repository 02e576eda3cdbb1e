"""What has ended, as an exporter of traces reads it: runs, scopes, attempts and the calls of durable attempts, each in the order of the ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

Kind = Literal["run", "scope", "attempt", "unit"]
KINDS: Final[tuple[Kind, ...]] = ("unit", "attempt", "scope", "run")
"""In the order in which they are sent: what is inside before what is around it."""


class Position(NamedTuple):
    """The end and the key of the last row that was sent."""

    at: datetime
    key: str


class Export(NamedTuple):
    """A turn to export."""

    positions: Mapping[Kind, Position]
    """Up to where each kind of row was sent."""
    now: datetime
    """The store's time."""
    until: datetime
    """All that ended before this can be read by now."""


@dataclass(slots=True, kw_only=True)
class Ended:
    """What all rows have: of which run they are, and when they began and ended, by the store's clock."""

    ended: datetime
    key: str
    run: str
    trace_parent: str | None
    pipeline: str
    tenant: str
    began: datetime

    @property
    def position(self) -> Position:
        """Return the position behind this row."""
        return Position(self.ended, self.key)


@dataclass(slots=True, kw_only=True)
class Ending(Ended):
    """How a run, a scope or an attempt ended."""

    status: str
    reason: str | None
    feedback: str | None
    error: str | None
    root: str


@dataclass(slots=True, kw_only=True)
class EndedRun(Ending):
    """A run. Each of its `links` has what the other run is to it, that one's id, and its trace context."""

    parent_run: str | None
    is_background: bool
    version: str
    links: Sequence[tuple[str, str, str | None]]


@dataclass(slots=True, kw_only=True)
class EndedScope(Ending):
    """A container, or an iteration, a branch or a path of one."""

    address: str
    parent: str | None
    kind: str
    name: str
    exit_reason: str | None
    is_cached: bool


@dataclass(slots=True, kw_only=True)
class EndedAttempt(Ending):
    """An attempt."""

    address: str
    step: str
    number: int
    kind: str
    worker: str | None
    fence: int
    losses: int
    input_tokens: int
    output_tokens: int
    requests: int
    cost_usd: float
    model: str | None
    agent: str | None
    is_last: bool
    """Whether none follows at its step, which has then ended too; that began at `step_began`."""
    step_began: datetime | None
    container: str | None
    """The address of the container that the attempt is part of, instead of a step."""
    has_units: bool
    """Whether its calls are on record; `replayed` of them were answered from the record, and those in `unknown` have no answer."""
    replayed: int
    unknown: Sequence[str]


@dataclass(slots=True, kw_only=True)
class EndedUnit(Ended):
    """A call of a durable attempt that was answered. `tries`: how many claims have begun it."""

    attempt: str
    operation: str
    effect: str | None
    tries: int
    input_tokens: int
    output_tokens: int
    requests: int
    cost_usd: float
    model: str | None


class AttemptEvent(NamedTuple):
    """An event of an attempt, with its time by the worker's clock."""

    at: datetime
    name: str
    data: Mapping[str, Any]


AnyEnded: TypeAlias = EndedRun | EndedScope | EndedAttempt | EndedUnit
