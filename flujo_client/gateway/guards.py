"""Queries about what holds attempts and runs back: concurrency limits, open circuit breakers, gates of runs, and locks of others."""

from __future__ import annotations

from dataclasses import dataclass

from flujo_client.contract.deployment import LockHolder
from flujo_client.gateway.health import HOME as HEALTH
from flujo_client.gateway.requests import Request

MOST = 20
LONG_S = 2.0
"""Seconds after which a transaction that holds locks is listed: Flujo's own are shorter."""


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


def lock_holders(older_s: float = LONG_S) -> Request[list[LockHolder]]:
    """List the sessions whose transactions hold locks on Flujo's tables for longer than so many seconds, the oldest first."""
    return Request("lock_holders", {"lock": None, "older_s": older_s}, lambda rows: [LockHolder(**row) for row in rows])
