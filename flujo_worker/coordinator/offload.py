"""Replace large values of decisions, and those that many messages share, by references to where they are stored. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flujo_client.serial import Packed
    from flujo_worker.domain.values import Decision, NextAttempt

WORTH_SHARING = 512
"""The size in bytes from which a value that many messages share is stored once and referenced."""


def offload_large_values(decision: Decision, inline: int) -> tuple[Decision, list[Packed]]:
    """Return the decision with references, and the values to store for them.

    `inline`: the size in bytes above which a value is stored once and referenced.
    """
    times = Counter(id(each) for following in decision.next for each in (following.input, following.context))
    large = {id(each): each for each in _values(decision) if _is_large(each, times[id(each)], inline)}
    if not large:
        return decision, []
    references = {key: each.reference() for key, each in large.items()}

    def offloaded(each: Packed) -> Packed:
        return references.get(id(each), each)

    return _replaced(decision, offloaded), list(large.values())


def _replaced(decision: Decision, offloaded: Callable[[Packed], Packed]) -> Decision:
    def offloaded_or_none(each: Packed | None) -> Packed | None:
        return None if each is None else offloaded(each)

    def offloaded_attempt(each: NextAttempt) -> NextAttempt:
        return replace(each, input=offloaded(each.input), context=offloaded_or_none(each.context))

    outcome, child, end = decision.notice.outcome, decision.child_run, decision.end
    outcome = replace(outcome, output=offloaded_or_none(outcome.output), context=offloaded_or_none(outcome.context))
    return replace(
        decision,
        notice=replace(decision.notice, outcome=outcome),
        moves=tuple(
            replace(
                move,
                output=offloaded_or_none(move.output),
                context=offloaded_or_none(move.context),
                patch=offloaded_or_none(move.patch),
            )
            for move in decision.moves
        ),
        opens=tuple(
            replace(each, output=offloaded(each.output), context=offloaded_or_none(each.context))
            for each in decision.opens
        ),
        next=tuple(map(offloaded_attempt, decision.next)),
        begun=tuple(replace(each, context=offloaded_or_none(each.context)) for each in decision.begun),
        child_run=child and replace(child, first=offloaded_attempt(child.first)),
        end=end and replace(end, output=offloaded_or_none(end.output)),
        above=tuple(
            replace(each, output=offloaded(each.output), context=offloaded_or_none(each.context))
            for each in decision.above
        ),
    )


def _is_large(packed: Packed, times: int, inline: int) -> bool:
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
