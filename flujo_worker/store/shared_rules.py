"""Rules of both stores, defined once: the time that a publisher has, and who has a lane. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from flujo_worker.domain.carry_on import PlanMove
    from flujo_worker.domain.values import Decision, NextAttempt, ScopeRow

T = TypeVar("T")

ADMITTED_AT_ONCE = 200
GRACE_S = 1.0
MAX_FORKS = 20
"""The number of forks that are followed back to find the plans of a run."""
GRACE_PER_ROW_S = 0.005
SUSPECT_AFTER = 2
"""The number of losses after which an attempt is claimed only in isolation (ADR 13)."""
HANDED_BACK_OFTEN = 3
"""From this hand-back of an attempt on, its event is a warning (ADR 38)."""
HANDED_BACK_MOST = 20
"""The number of hand-backs after which each further one counts as a loss: the attempt may be stopping its workers."""


def fairly(rows: Iterable[T], code: Callable[[T], Hashable]) -> list[T]:
    """Return the first of each pipeline, then the second of each, and so on: code that is no longer deployed must not hide the rest."""
    places: defaultdict[Hashable, count[int]] = defaultdict(count)
    return sorted(rows, key=lambda row: next(places[code(row)]))


def grace_s(rows: int) -> float:
    """Return the seconds to publish that many rows before the sweeper does; the sweeper must not race a long fan-out."""
    return GRACE_S + GRACE_PER_ROW_S * rows


def due_after_s(following: NextAttempt, grace: float) -> float | None:
    """Return the seconds until an attempt is due; None if it waits for a lane, or is a question that does not expire."""
    waits = following.held or (following.question is not None and not following.delay_s)
    return None if waits else following.delay_s or grace


def published(decision: Decision) -> int:
    """Return how many rows the tail publishes at once."""
    return sum(each.sent_after_s == 0 for each in decision.next)


def held_branches(decision: Decision) -> set[str]:
    return {each.address for each in decision.next if each.held}


def given_lanes(opening: ScopeRow, held: Collection[str]) -> dict[str, int]:
    """Return the lanes of a scope that is opened. A branch that is held has none in its fan-out until one is free for it."""
    is_held = opening.address in held
    return {fan_out: lane for fan_out, lane in opening.lanes.items() if not (is_held and fan_out == opening.parent)}


def story_of(move: PlanMove) -> tuple[str, dict[str, Any]]:
    """Return the level and the data of the event of a run's new plan."""
    data = {"from": move.state.fingerprint, "to": move.plan.fingerprint, "changes": list(move.changes)}
    return "warning" if move.rewrites else "info", data
