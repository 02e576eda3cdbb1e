"""Replace large values of decisions, and those that many messages share, by references to where they are stored. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

    from flujo_client.serial import Packed
    from flujo_worker.domain.values import Decision

T = TypeVar("T", bound="DataclassInstance")

WORTH_SHARING = 512
"""The size in bytes from which a value that many messages share is stored once and referenced."""


def offload_large_values(decision: Decision, inline: int) -> tuple[Decision, list[Packed]]:
    """Return the decision with references for values of more bytes than `inline`, and these values, to be stored once."""
    least = min(inline, WORTH_SHARING)
    first = () if decision.child_run is None else (decision.child_run.first,)
    holders: tuple[DataclassInstance, ...]
    holders = (decision.notice.outcome, *decision.moves, *decision.opens, *decision.next, *first, *decision.begun)
    values = [getattr(holder, name) for holder in holders for name in _names(type(holder))]
    sizable: list[Packed] = [each for each in values if each is not None and each.size > least]
    if not sizable:  # as most
        return decision, []
    times = Counter(id(each) for following in decision.next for each in (following.input, following.context))
    large = {id(each): each for each in sizable if _is_large(each, times[id(each)], inline)}
    if not large:
        return decision, []
    references = {key: each.reference() for key, each in large.items()}

    def offloaded(each: Packed) -> Packed:
        return references.get(id(each), each)

    stored = tuple({each.digest: None for each in large.values()})
    return replace(_replaced(decision, offloaded), stored=stored), list(large.values())


def _replaced(decision: Decision, offloaded: Callable[[Packed], Packed]) -> Decision:
    def change(holder: T) -> T:
        values = {name: value for name in _names(type(holder)) if (value := getattr(holder, name)) is not None}
        return replace(holder, **{name: offloaded(value) for name, value in values.items()})

    child, many = decision.child_run, ("moves", "opens", "next", "begun", "above")
    changed: dict[str, Any] = {name: tuple(map(change, getattr(decision, name))) for name in many}
    return replace(
        decision,
        notice=replace(decision.notice, outcome=change(decision.notice.outcome)),
        child_run=child and replace(child, first=change(child.first)),
        end=decision.end and change(decision.end),
        **changed,
    )


def _is_large(packed: Packed, times: int, inline: int) -> bool:
    if packed.is_reference:
        return False
    return packed.size > inline or (packed.size > WORTH_SHARING and packed.size * times > inline)


@cache
def _names(kind: type[DataclassInstance]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind) if each.name in {"input", "output", "context", "patch"})
