"""What both stores promise alike, so that neither can drift: how long a publisher has, and who has a lane. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flujo_worker.domain.values import Decision

GRACE_S = 1.0
GRACE_PER_ROW_S = 0.005


def grace_s(rows: int) -> float:
    """Seconds that a tail may take to publish so many rows before the sweeper does; it must not race a long fan-out."""
    return GRACE_S + GRACE_PER_ROW_S * rows


def published(decision: Decision) -> int:
    """How many rows the tail publishes at once."""
    return sum(not each.held and each.delay_s == 0 for each in decision.next)


def given_lanes(decision: Decision) -> list[dict[str, int]]:
    """The lanes of each scope that is opened. A branch that is held has none in its fan-out until one is free for it."""
    held = {each.address for each in decision.next if each.held}
    return [
        {fan_out: lane for fan_out, lane in each.lanes.items() if each.address not in held or fan_out != each.parent}
        for each in decision.opens
    ]
