"""A cached step: an earlier result, or the step, whose success is then stored.

In the bodies of loops and the states of machines, where steps run again on purpose, the cache is bypassed. Results are stored after the
commit, so that a cache contains only merged results.

Of equal calls at the same time one runs the step. The others check again, at growing intervals, until the result is there, or the lease of
the one that runs it is released or expired, or they have waited for two leases: then they run it themselves.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

from flujo_client.pipeline.cache import SINGLE_FLIGHT_S
from flujo_client.pipeline.fallback import FALLBACK
from flujo_client.pipeline.reference import bare
from flujo_client.plan.plan import Node
from flujo_client.serial import Tree, canonical
from flujo_worker.domain.draft import DecisionBuilder, Kind, ScopeState, Steps, StepsWithResult
from flujo_worker.domain.flow import enter as begin
from flujo_worker.domain.flow import finish, give_up, open_child, open_container, same
from flujo_worker.domain.values import Cached, CacheEntry, CallUserCode, UserCodeFailed
from flujo_worker.domain.waiting import FIRST_AGAIN, next_number

ABSENT, IN_FLIGHT = "absent", "in_flight"
LEASES = 2
"""For so many leases a call waits for equal ones: when the first holder has died, the next one still serves all others."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 4.0
KEY = "cache_key"
_UNORDERED = frozenset({"map", "set", "frozenset"})


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    """Continue with the stored result, wait for an equal call that runs the step, or begin it."""
    found = None if _is_repeated(draft, scope) else (yield from _look_up(draft, scope, node))
    if found is not None and found.why == IN_FLIGHT:
        _wait(draft, scope, node, found)
        return
    container = open_container(draft, scope, node)
    if found is not None:
        if found.output is not None:
            draft.emit("flujo.cache.hit", step=node.name, key=found.key)
            yield from finish(draft, container, found.output, found.context, cache_hit=True)
            return
        draft.emit("flujo.cache.miss", "info" if found.why == ABSENT else "warning", step=node.name, reason=found.why)
        if found.key is not None:
            container.metadata[KEY] = found.key
    yield from begin(draft, open_child(draft, container, "/body", "body", 0, container.output))


def closed(draft: DecisionBuilder, container: ScopeState, node: Node, body: ScopeState) -> Steps:
    """Store a success, and continue with it. A failure is never stored, and is passed up as without a cache."""
    if body.status != "succeeded":
        if KEY in container.metadata:
            draft.cache_entries.append(_entry(draft, container, node))
        yield from give_up(draft, container, body.fault, context=body.context)
        return
    if KEY in container.metadata:
        yield from _store_result(draft, container, node, body)
    yield from finish(draft, container, body.output, body.context)


def _look_up(draft: DecisionBuilder, scope: ScopeState, node: Node) -> StepsWithResult:
    """Ask for the stored result of this step for this input. If that fails for any reason, the step is run."""
    ticket = draft.notice.envelope.ticket
    dependencies = {
        "tenant": ticket.tenant,
        "pipeline": bare(ticket.reference),
        "version": draft.plan.version,
        "path": node.path,
        "step": [each.to_tree() for each in node.bodies["body"]],
        "aros": ticket.aros,
        "has_context": scope.context is not None,
    }
    lease_s = node.rules.get("single_flight_s", SINGLE_FLIGHT_S)
    flight = None
    if _waited_s(next_number(draft, scope, node.name)) < LEASES * lease_s:
        address = f"{scope.address}/{node.name}" if scope.address else node.name
        flight = {"holder": _holder(draft, address), "lease_s": lease_s}
    data = {"told": dependencies, "flight": flight}
    try:
        return (yield CallUserCode("cached", node.path, (scope.output, scope.context), data))
    except UserCodeFailed as refused:
        return Cached(why=refused.fault.type_name)


def _store_result(draft: DecisionBuilder, container: ScopeState, node: Node, body: ScopeState) -> Steps:
    patch = None
    if not same(container.context, body.context):
        try:
            patch = yield CallUserCode("patch", node.path, (container.context, body.context))
        except UserCodeFailed as refused:
            data = {"step": node.name, "reason": refused.fault.type_name}
            draft.emit("flujo.cache.not_stored", "warning", **data)
            draft.cache_entries.append(_entry(draft, container, node))
            return
    entry = _entry(draft, container, node)
    fallbacks = yield from _fallbacks(draft, body, node.bodies["body"][0])
    draft.cache_entries.append(replace(entry, output=body.output, patch=patch, fallbacks=fallbacks))


def _fallbacks(draft: DecisionBuilder, body: ScopeState, node: Node) -> StepsWithResult:
    """Count the fallbacks that the cached step used, because a hit has to write to the sinks of the step that gave the output."""
    count, address = 0, f"{body.address}/{node.name}"
    while FALLBACK in node.bodies and (yield from draft.read_scope(address)).metadata.get("fallback_triggered"):
        count, [node] = count + 1, node.bodies[FALLBACK]
        address = f"{address}/{FALLBACK}/{node.name}"
    return count


def _entry(draft: DecisionBuilder, container: ScopeState, node: Node) -> CacheEntry:
    return CacheEntry(node.path, container.metadata[KEY], _holder(draft, container.address))


def _holder(draft: DecisionBuilder, address: str) -> str:
    return f"{draft.notice.envelope.ticket.run}:{address}"


def _wait(draft: DecisionBuilder, scope: ScopeState, node: Node, found: Cached) -> None:
    """Begin again a little later; the sequence does not move."""
    number = next_number(draft, scope, node.name)
    wait_s = _wait_s(number)
    draft.work(scope, node, kind="start", number=number, delay_s=wait_s)
    draft.emit("flujo.cache.waiting", step=node.name, key=found.key, delay_seconds=wait_s)


def _wait_s(number: int) -> float:
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(number - FIRST_AGAIN, 10))


def _waited_s(number: int) -> float:
    """Return how long a call has waited before the work with that number would begin."""
    return sum(map(_wait_s, range(FIRST_AGAIN, number)))


def _is_repeated(draft: DecisionBuilder, scope: ScopeState) -> bool:
    """Return whether it is in a body that is run again and again."""
    location = draft.plan.locate(scope.address)
    while location.container is not None:
        if location.container.spec.revisits:
            return True
        location = draft.plan.locate(location.above or "")
    return False


def cache_key(name: str, dependencies: dict[str, Any], value: Tree) -> str:
    """Return the key of a step's result: its name, and the SHA-256 of its input's tree, and of the step and its place as plain data.

    Equal inputs have the same key, whatever the order of mappings and sets; inputs of different types have different ones.
    """
    digest = sha256(canonical({**dependencies, "input": _ordered(value)})).hexdigest()
    return f"{name}:{digest}"


def _ordered(tree: Tree) -> Tree:
    """Return the tree with everything in order whose order means nothing; names of mappings are ordered when it is written."""
    if type(tree) is list:
        return [_ordered(each) for each in tree]
    if type(tree) is not dict:
        return tree
    ordered = {name: _ordered(each) for name, each in tree.items()}
    if tree.get("$") in _UNORDERED:
        ordered["v"].sort(key=canonical)
    return ordered


KIND = Kind(enter=enter, closed=closed)
