"""A cached step: what a step gave before, or the step, whose success is then kept.

Where steps are run again on purpose, in the bodies of loops and the states of machines, the cache is passed by. What is kept is
written after the commit, so that nothing is in a cache that was not merged.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from flujo_client.pipeline.reference import bare
from flujo_client.serial import canonical
from flujo_worker.domain.draft import Kind
from flujo_worker.domain.flow import enter as begin
from flujo_worker.domain.flow import finish, give_up, open_child, open_container, same
from flujo_worker.domain.values import Cached, CacheEntry, CallUserCode, UserCodeFailed

if TYPE_CHECKING:
    from flujo_client.contract.plan import Node
    from flujo_client.serial import Tree
    from flujo_worker.domain.draft import DecisionBuilder, ScopeState, Steps, StepsWithResult

ABSENT = "absent"
KEY = "cache_key"
_UNORDERED = frozenset({"map", "set", "frozenset"})


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    """Go on with what is kept, or begin the step."""
    container = open_container(draft, scope, node)
    if not _is_repeated(draft, scope):
        found = yield from _look_up(draft, scope, node)
        if found.output is not None:
            draft.emit("flujo.cache.hit", step=node.name, key=found.key)
            yield from finish(draft, container, found.output, found.context, cache_hit=True)
            return
        draft.emit("flujo.cache.miss", "info" if found.why == ABSENT else "warning", step=node.name, reason=found.why)
        if found.key is not None:
            container.metadata[KEY] = found.key
    yield from begin(draft, open_child(draft, container, "/body", "body", 0, container.output))


def closed(draft: DecisionBuilder, container: ScopeState, node: Node, body: ScopeState) -> Steps:
    """Have a success kept, and continue with it. A failure is never kept, and hands up what it would without a cache."""
    if body.status != "succeeded":
        yield from give_up(draft, container, body.fault, context=body.context)
        return
    if KEY in container.metadata:
        yield from _store_result(draft, container, node, body)
    yield from finish(draft, container, body.output, body.context)


def _look_up(draft: DecisionBuilder, scope: ScopeState, node: Node) -> StepsWithResult:
    """Ask for what is kept of this step for this input. Whatever goes wrong there, the step is run."""
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
    try:
        return (yield CallUserCode("cached", node.path, (scope.output, scope.context), {"told": dependencies}))
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
            return
    draft.cache_entries.append(CacheEntry(node.path, container.metadata[KEY], body.output, patch))


def _is_repeated(draft: DecisionBuilder, scope: ScopeState) -> bool:
    """Tell whether it is in a body that is run again and again."""
    location = draft.location(scope)
    while location.container is not None:
        if location.container.spec.revisits:
            return True
        location = draft.plan.locate(location.above or "")
    return False


def cache_key(name: str, dependencies: dict[str, Any], value: Tree) -> str:
    """Return the key of a step's result: its name, and the SHA-256 of what the result depends on.

    Args:
        name: the step's.
        dependencies: the step and its place, as plain data.
        value: the input's tree. Equal inputs give one key, in whatever order mappings and sets were filled; inputs of different
            types give different ones.
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
