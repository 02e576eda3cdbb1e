"""The calls of durable attempts on record: what is asked, by which claim, and the answer; and the requests that are asked in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, NamedTuple, TypeAlias

from flujo_client.contract.outcome import NO_USAGE, Usage
from flujo_client.frozen import frozen
from flujo_client.serial import Packed
from flujo_worker.domain.budget import Reservation

Effect = Literal["keyed", "once"]
"""What a tool does outside: `keyed`, by a key that makes a repetition harmless; `once`, never again without a person's word."""


class UnitName(NamedTuple):
    """What names a unit in its run."""

    place: str
    """Address, step and number of the first attempt of those that share it; of an effect without the number."""
    digest: bytes
    """Of what is asked, and of what it is asked for."""
    nth: int
    """Among equal ones, from 0."""


@frozen
class Unit:
    """One call, as a claim asks it."""

    run: str
    name: UnitName
    key: str
    fence: int
    claim_id: str
    operation: str = field(compare=False)
    effect: Effect | None = field(default=None, compare=False)
    """None: it may be repeated."""
    asked: Packed | None = field(default=None, compare=False)
    """Who asks, and the parts of a request, each with a short digest."""
    model: str | None = field(default=None, compare=False)
    """Of a request, by its provider and name."""

    @property
    def id(self) -> str:
        """Return what names it among all units of all runs."""
        return f"{self.run}:{self.name.place}:{self.name.digest.hex()}:{self.name.nth}"


@frozen
class SettledUnit:
    """A unit with its answer, and what that has cost, which is booked with it."""

    unit: Unit
    answer: Packed
    usage: Usage = NO_USAGE
    holds: Sequence[Reservation] = ()
    """What its claim still holds of its budgets then; nothing without limits."""


Written: TypeAlias = Unit | SettledUnit
"""A unit that is announced, or one with its answer."""


@frozen
class RecordedUnit:
    """A unit on record: of the claim that began it last. Without an answer it has possibly been done."""

    name: UnitName
    operation: str
    effect: Effect | None
    key: str
    fence: int
    claim_id: str
    tries: int = 1
    """How many claims have begun it."""
    answer: Packed | None = None
    usage: Usage = NO_USAGE
    asked: Packed | None = None
    """Who asks, and the parts of a request."""


@frozen
class BatchedRequest:
    """A request that waits for a batch."""

    id: str
    """A digest of its unit's id, by which the provider names its result."""
    run: str
    place: str
    pool: str
    """Names the requests that can be in one batch."""
    body: Packed
    """As the provider reads it."""
    size: int
    """The bytes that it adds to a batch."""
    deadline_s: float
    """Seconds after which the request is sent live instead."""


@frozen
class RequestState:
    """What has become of one: whether it is in a batch, its result, how long ago it was asked, and the seconds that are left."""

    is_taken: bool
    result: Packed | None
    age_s: float
    left_s: float


@frozen
class HeldBatch:
    """A batch that a claim has in hand."""

    id: str
    handle: Mapping[str, Any] | None
    """What the provider calls it; None: it is announced, and, unless it `is_new`, possibly submitted."""
    began: float
    """When it was announced, in unix seconds."""
    is_new: bool
