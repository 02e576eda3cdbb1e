"""Compute how a run's rows change when it moves to another plan. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from flujo_client.address import AttemptKey
from flujo_client.contract.carry_on import AttemptPlace, RunPosition, RunState
from flujo_client.frozen import frozen
from flujo_client.plan import kinds
from flujo_client.plan.plan import Node, Plan
from flujo_client.plan.plan_difference import Difference

MOST_SHOWN = 20
"""Differences that the event of a move lists."""
AT_ONCE: Final = 16
"""The number of handovers without a delay: idle workers take turns, so that one in so many gets the attempt within that."""
LONGEST_S: Final = 15.0
"""The longest delay of an attempt while workers with its code have no free slot."""


def handover_delay_s(claims: int) -> float:
    """Return the seconds until an attempt is published again that was claimed so often, the last time by a worker without its code."""
    return 0.0 if claims <= AT_ONCE else min(LONGEST_S, 0.5 * 2.0 ** min(claims - AT_ONCE - 1, 10))


@frozen
class MovedAttempt:
    """An open attempt that continues as another one: at the step that the new plan has in its place, or in another queue."""

    key: str
    new: AttemptKey
    queue: str

    @property
    def begins_again(self) -> bool:
        """Return whether it begins again, at another step."""
        return self.key != str(self.new)


@frozen
class PlanMove:
    """A run's move to another plan."""

    state: RunState
    """Its state at the decision; the move is made only if that has not changed."""
    plan: Plan
    attempts: tuple[MovedAttempt, ...]
    """Those of its open attempts that change."""
    changes: tuple[str, ...]
    """Descriptions of the differences between the plans."""
    rewrites: bool = False
    """Whether steps differ that have run under the old plan."""
    worker: str | None = None
    """The worker that moves it, which must not have been started before the run took the old plan; None for an operator."""


def move(
    old: Plan,
    new: Plan,
    state: RunState,
    changed: Sequence[Difference],
    *,
    control_queue: str,
    worker: str | None = None,
) -> PlanMove:
    """Make the move of a run that may continue under a new plan; `changed` is all that differs."""
    where = RunPosition(old, state)
    rewrites = any(each.effect != "option" and where.position(each) == "before" for each in changed)
    moved = tuple(_moved(new, state, control_queue))
    words = tuple(map(str, changed))
    shown = (*words[:MOST_SHOWN], f"and {len(words) - MOST_SHOWN} more") if len(words) > MOST_SHOWN else words
    return PlanMove(state, new, moved, shown, rewrites, worker)


def _moved(new: Plan, state: RunState, control_queue: str) -> Iterator[MovedAttempt]:
    cursors = {scope.address: scope.cursor for scope in state.scopes}
    for attempt in state.open_attempts:
        nodes, cursor = new.locate(attempt.address).nodes or (), cursors[attempt.address]
        if attempt.kind == "join" or cursor >= len(nodes):  # at a container, or at the end of one's body
            continue
        node = nodes[cursor]
        key = _key(attempt, node, state)
        queue = control_queue if key.kind == "start" else node.queue or state.queue
        yield MovedAttempt(attempt.key, key, queue)


def _key(attempt: AttemptPlace, node: Node, state: RunState) -> AttemptKey:
    """Return the attempt's key at the step that is in its place: the same for the same step, or that of the next try there."""
    is_asleep = node.spec is kinds.SLEEP and (attempt.step, attempt.kind) == (node.name, "step")
    kind = "step" if node.spec.performs else "start"
    key = AttemptKey.parse(attempt.key)
    if is_asleep or attempt.kind == "resume" or (attempt.step, attempt.kind) == (node.name, kind):
        return key
    place = attempt.address, node.name, kind
    tried = [each.number for each in state.attempts if (each.address, each.step, each.kind) == place]
    return AttemptKey(state.run, attempt.address, node.name, max(tried, default=0) + 1, kind)
