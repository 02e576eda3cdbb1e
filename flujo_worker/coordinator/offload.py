"""Makes decisions light: large values, and those that many messages share, are replaced by references to where they are kept. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flujo_client.serial import Packed
    from flujo_worker.domain.values import Decision, NextAttempt

WORTH_SHARING = 512
"""Bytes from which a value that many messages carry is stored once and pointed at."""


def offload_large_values(decision: Decision, inline: int) -> tuple[Decision, list[Packed]]:
    """Give the decision with references, and the values that are to be kept for them.

    Args:
        decision: what was decided.
        inline: the size in bytes above which a value is stored once and pointed at.
    """
    times = Counter(id(each) for following in decision.next for each in (following.input, following.context))
    heavy = {id(each): each for each in _values(decision) if _is_heavy(each, times[id(each)], inline)}
    if not heavy:
        return decision, []
    references = {key: each.reference() for key, each in heavy.items()}

    def light(each: Packed) -> Packed:
        return references.get(id(each), each)

    return _replaced(decision, light), list(heavy.values())


def _replaced(decision: Decision, light: Callable[[Packed], Packed]) -> Decision:
    def light_or_none(each: Packed | None) -> Packed | None:
        return None if each is None else light(each)

    def light_work(each: NextAttempt) -> NextAttempt:
        return replace(each, input=light(each.input), context=light_or_none(each.context))

    outcome, child, end = decision.notice.outcome, decision.child_run, decision.end
    outcome = replace(outcome, output=light_or_none(outcome.output), context=light_or_none(outcome.context))
    return replace(
        decision,
        notice=replace(decision.notice, outcome=outcome),
        moves=tuple(
            replace(
                move,
                output=light_or_none(move.output),
                context=light_or_none(move.context),
                patch=light_or_none(move.patch),
            )
            for move in decision.moves
        ),
        opens=tuple(
            replace(each, output=light(each.output), context=light_or_none(each.context)) for each in decision.opens
        ),
        next=tuple(map(light_work, decision.next)),
        begun=tuple(replace(each, context=light_or_none(each.context)) for each in decision.begun),
        child_run=child and replace(child, first=light_work(child.first)),
        end=end and replace(end, output=light_or_none(end.output)),
    )


def _is_heavy(packed: Packed, times: int, inline: int) -> bool:
    if packed.is_reference:
        return False
    return packed.size > inline or (packed.size > WORTH_SHARING and packed.size * times > inline)


def _values(decision: Decision) -> Iterator[Packed]:
    outcome, child = decision.notice.outcome, decision.child_run
    found = [outcome.output, outcome.context]
    for move in decision.moves:
        found += [move.output, move.context, move.patch]
    for opening in decision.opens:
        found += [opening.output, opening.context]
    for following in (*decision.next, *([child.first] if child else ())):
        found += [following.input, following.context]
    found += [each.context for each in decision.begun]
    return (each for each in found if each is not None)
