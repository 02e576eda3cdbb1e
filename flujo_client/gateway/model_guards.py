"""Queries about the fleet's settings of circuit breakers and rate limits, and changes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flujo_client.contract.model_guards import WAKE_S, Guard, GuardRow, waits_for
from flujo_client.gateway.requests import Request
from flujo_client.serial import stored_safely

MOST = 20
_LIKE = str.maketrans({"\\": "\\\\", "%": "\\%", "_": "\\_", "*": "%", "?": "_"})


@dataclass(frozen=True, slots=True)
class WaitingForModel:
    """Attempts that wait until their model may be called: for its breaker or its rate, how many, and in how many seconds the next one asks."""

    guard: Guard
    model: str
    waiting: int
    next_s: float


def waiting_for_models() -> Request[list[WaitingForModel]]:
    """List the models that attempts wait for, those with most of them first."""
    return Request("waiting_for_models", {"limit": MOST}, lambda rows: [WaitingForModel(**row) for row in rows])


def guard_rows() -> Request[list[GuardRow]]:
    """Read the fleet's settings."""
    return Request("guard_rows", {}, lambda rows: [GuardRow.of(row) for row in rows])


def edit_guard(
    guard: Guard, model: str, edits: Mapping[str, Any] | None = None, *, resets: bool = False, clears: bool = False
) -> Request[int]:
    """Change what operators have set for the models of a name or pattern; the answer is how many waiting attempts will ask again.

    Args:
        guard: what to change.
        model: the name or pattern.
        edits: settings to set; others stay.
        resets: whether others go back to what the settings file says.
        clears: whether workers close the breaker, or end the slow-down.
    """
    parameters = {
        "guard": guard,
        "model": model,
        "edits": None if edits is None else stored_safely(dict(edits)),
        "resets": resets,
        "clears": clears,
        "wake_s": WAKE_S,
        "waits_for": waits_for(guard, model.partition("[")[0] + "*" if "[" in model else model).translate(_LIKE),
    }
    return Request("edit_guard", parameters, lambda rows: int(rows[0]["woken"]))
