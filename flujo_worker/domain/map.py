"""A map: its body for each item of an iterable, sequentially or in parallel; results have the order of the items.

The items of a sequential map are in separate rows from the beginning, so that no message and no row grows with their number.
"""

from __future__ import annotations

from collections.abc import Sequence

from flujo_client.plan.plan import Node
from flujo_client.serial import Packed
from flujo_worker.domain.draft import DecisionBuilder, Kind, ScopeState, Steps
from flujo_worker.domain.fan_out import fan_out, join
from flujo_worker.domain.flow import call_user_code, close_the_rest, finish, give_up, open_child, open_container, within
from flujo_worker.domain.flow import enter as begin
from flujo_worker.domain.values import CallUserCode, UserCodeFailed


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    try:
        values, rules = (scope.output, scope.context), {"iterable": node.rules["iterable"]}
        items = yield CallUserCode("items", node.path, values, rules)
    except UserCodeFailed as refused:
        yield from give_up(draft, open_container(draft, scope, node), refused.fault)
        return
    if node.is_fan_out:
        named = [(f"#{place}", f"{node.name}#{place}", item) for place, item in enumerate(items, start=1)]
        yield from fan_out(draft, scope, node, named)
    else:
        yield from _one_by_one(draft, scope, node, items)


def closed(draft: DecisionBuilder, container: ScopeState, node: Node, item: ScopeState) -> Steps:
    """Begin the next item after one that is done, or collect the outputs of all."""
    if item.status != "succeeded":
        yield from _broken(draft, container, item)
        return
    container.context, container.merges = item.context, True
    if container.cursor == container.metadata["items"]:
        children = yield from draft.children(container)
        yield from _collect(draft, container, node, [child.output for child in children])
        return
    container.cursor += 1
    following = yield from draft.read_scope(f"{container.address}#{container.cursor}")
    following.context, following.merges = container.context, True
    yield from begin(draft, following)


def _one_by_one(draft: DecisionBuilder, scope: ScopeState, node: Node, items: Sequence[Packed]) -> Steps:
    container = open_container(draft, scope, node)
    container.metadata["items"] = len(items)
    if not items:
        yield from _collect(draft, container, node, ())
        return
    children = [
        open_child(draft, container, f"#{n}", f"{node.name}#{n}", n, item) for n, item in enumerate(items, start=1)
    ]
    for waiting in children[1:]:
        waiting.context = None
    container.cursor = 1
    yield from begin(draft, children[0])


def _collect(draft: DecisionBuilder, container: ScopeState, node: Node, outputs: Sequence[Packed]) -> Steps:
    try:
        collected = yield CallUserCode("collect", node.path, tuple(outputs))
        given = collected, container.context, container.output
        output = yield from call_user_code(node, "output", *given, otherwise=collected)
    except UserCodeFailed as refused:
        yield from give_up(draft, container, refused.fault, context=container.context)
        return
    yield from finish(draft, container, output, container.context, iterations=len(outputs))


def _broken(draft: DecisionBuilder, container: ScopeState, item: ScopeState) -> Steps:
    """Fail the map with its item; items that were not begun are closed with it."""
    yield from close_the_rest(draft, container)
    fault = item.fault and within(item.fault, f"item {container.cursor} failed at step '{draft.node(item).name}'")
    yield from give_up(draft, container, fault, context=container.context, iterations=container.cursor - 1)


KIND = Kind(enter=enter, closed=closed, joined=join)
