"""The values that deciding is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from flujo_client.contract.envelope import AttemptKind, Envelope
    from flujo_client.contract.outcome import Event, Fault, Outcome
    from flujo_client.serial import Packed

AttemptEnd = Literal["succeeded", "failed", "cancelled"]
ScopeStatus = Literal["open", "succeeded", "failed", "cancelled"]
RunEnd = Literal["succeeded", "failed", "cancelled", "expired"]


@dataclass(frozen=True, slots=True)
class Notice:
    """What the coordinator is told: this attempt, claimed under this fence, came to this outcome."""

    envelope: Envelope
    fence: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Close:
    """The attempt's end."""

    status: AttemptEnd
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """The scope's next state. `output` and `context` are None where they stay as they are.

    `merges` is true for a success alone: it raises the scope's version (M-006).
    """

    cursor: int
    status: ScopeStatus = "open"
    merges: bool = False
    output: Packed | None = None
    context: Packed | None = None


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """A work row to be made: published at once, or when `delay_s` seconds are over."""

    address: str
    step: str
    number: int
    queue: str
    kind: AttemptKind = "step"
    delay_s: float = 0.0
    guidance: str | None = None


@dataclass(frozen=True, slots=True)
class End:
    """The run's end."""

    status: RunEnd
    reason: str | None = None
    fault: Fault | None = None
    output: Packed | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """All that one commit changes, and what is to be published after it."""

    notice: Notice
    close: Close
    move: Move
    next: NextAttempt | None = None
    end: End | None = None
    events: tuple[Event, ...] = ()
