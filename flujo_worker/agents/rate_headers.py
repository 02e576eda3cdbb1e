"""Read a provider's rate limits from the headers of its responses: OpenAI's and Anthropic's names, which others use too. Pure.

In: headers, and the time. Out: the remaining quota, and the time until a limit is fully restored.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Final

from flujo_worker.domain.rate import Left

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEFT: Final = {
    "requests": ("x-ratelimit-remaining-requests", "anthropic-ratelimit-requests-remaining"),
    "tokens": ("x-ratelimit-remaining-tokens", "anthropic-ratelimit-tokens-remaining"),
}
_RESETS: Final = {
    "requests": ("x-ratelimit-reset-requests", "anthropic-ratelimit-requests-reset"),
    "tokens": ("x-ratelimit-reset-tokens", "anthropic-ratelimit-tokens-reset"),
}
_MOST_DIGITS: Final = 15
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def left_of(headers: Mapping[str, str]) -> Left:
    """Read how many requests and tokens are left."""
    return Left(_left(headers, "requests"), _left(headers, "tokens"))


def reset_wait(headers: Mapping[str, str], now: datetime) -> float:
    """Return the seconds until what is used up is free again; 0.0 where the headers do not say that anything is."""
    used_up = [name for name in _LEFT if _left(headers, name) == 0]
    return max((_until(_first(headers, _RESETS[name]), now) for name in used_up), default=0.0)


def _left(headers: Mapping[str, str], name: str) -> int | None:
    text = _first(headers, _LEFT[name]).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((headers[name] for name in names if name in headers), "")


def _until(text: str, now: datetime) -> float:
    """Read `6m0s`, `120ms` or a time as RFC 3339 writes it; 0.0 for anything else."""
    parts = _DURATION.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text.strip():
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return max(0.0, (at - now).total_seconds()) if at.tzinfo is not None else 0.0
