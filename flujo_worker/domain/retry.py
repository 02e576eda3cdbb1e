"""Whether to try again, and when. Decided here and nowhere else."""

from __future__ import annotations

import hashlib
import sys

from flujo_client.contract.outcome import Fault
from flujo_client.plan.plan import Backoff

RETRYABLE = frozenset({"agent"})
LONGEST_S = 86_400.0
"""The longest wait is a day, even if a service asks for more: it must fit a timestamp."""


def may_retry(fault: Fault | None, number: int, max_attempts: int) -> bool:
    """Return whether another attempt follows attempt `number`: one that the code asks for, or after an agent failure while attempts are left."""
    if fault is None or not fault.retryable:
        return False
    return fault.is_requested or (fault.category in RETRYABLE and number < max_attempts)


def delay_s(backoff: Backoff, number: int, key: str, asked_s: float | None = None) -> float:
    """Return the seconds to wait after attempt `number`, from 1, failed; a service's `Retry-After`, `asked_s`, if that is longer, a day at most.

    The jitter is drawn from the attempt's key, so that deciding the same thing twice gives the same answer.
    """
    grown = min(backoff.cap_s, backoff.base_s * _power(backoff.factor, number - 1))
    jittered = grown * (1 + backoff.jitter * (2 * draw(key) - 1))
    return min(LONGEST_S, max(jittered, asked_s or 0.0))


def draw(name: str) -> float:
    """Draw a number from 0 to 1 that is always the same for the same name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64


def _power(factor: float, times: int) -> float:
    try:
        return factor**times
    except OverflowError:
        return sys.float_info.max
