"""Queries about what holds attempts and runs back: concurrency limits, open circuit breakers, and gates of runs."""

from __future__ import annotations

from dataclasses import dataclass

from flujo_client.gateway.health import HOME as HEALTH
from flujo_client.gateway.requests import Request

MOST = 20


@dataclass(frozen=True, slots=True)
class LimitRecord:
    """A concurrency limit: how many attempts may run at once, how many do, and how many wait."""

    name: str
    at_once: int
    in_use: int
    waiting: int


@dataclass(frozen=True, slots=True)
class GateRecord:
    """A limit or window of runs: how many may be under way (None: any number, runs only wait), how many are, and how many wait."""

    name: str
    most: int | None
    taken: int
    waiting: int


@dataclass(frozen=True, slots=True)
class BreakerRecord:
    """A model whose circuit breaker is not closed: `opened` or `half_open`, for so many seconds."""

    model: str
    state: str
    since_s: float


def limits_in_use() -> Request[list[LimitRecord]]:
    """List the concurrency limits at which attempts run or wait."""
    return Request("limits_in_use", {"limit": MOST}, lambda rows: [LimitRecord(**row) for row in rows])


def gates_in_use() -> Request[list[GateRecord]]:
    """List the limits and windows at which runs wait for their admission."""
    return Request("gates_in_use", {"limit": MOST}, lambda rows: [GateRecord(**row) for row in rows])


def open_breakers() -> Request[list[BreakerRecord]]:
    """List the circuit breakers that were last seen open or half open."""
    return Request("open_breakers", {"limit": MOST}, lambda rows: [BreakerRecord(**row) for row in rows], HEALTH)
