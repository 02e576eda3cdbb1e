"""What was spent: by a run, and by all runs compared with a provider's own count."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import date
from typing import Literal


@dataclass(frozen=True, slots=True)
class SpendRecord:
    """What a step of a run has paid a model, holds of its budgets, or may have paid.

    Attributes:
        what: `paid`; `reserved`, for requests that are under way or may follow; `possibly paid`, requests whose answer is not on record.
        model: None for several, none, or an unknown one.
        requests: how many.
        tokens: input and output together; of what is possibly paid they are not known.
    """

    what: Literal["reserved", "paid", "possibly paid"]
    run_id: str
    address: str
    step: str
    model: str | None
    requests: int
    input_tokens: int
    output_tokens: int
    tokens: int
    cost_usd: float


@dataclass(frozen=True, slots=True)
class Counted:
    """Requests, tokens and dollars; None where a provider does not say."""

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None

    def __add__(self, other: Counted) -> Counted:
        return self._with(other, 1)

    def __sub__(self, other: Counted) -> Counted:
        """Return how much more this is than the other, where both are known."""
        return self._with(other, -1, needs_both=True)

    def _with(self, other: Counted, sign: int, *, needs_both: bool = False) -> Counted:
        def one(ours: float | None, theirs: float | None) -> float | None:
            if ours is None or theirs is None:
                return None if needs_both else ours if theirs is None else theirs
            return round(ours + sign * theirs, 9)

        return Counted(*(one(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class DayOfModel:
    """What one model has cost on one day in UTC."""

    day: date
    model: str | None
    counted: Counted
