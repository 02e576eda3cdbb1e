"""Contexts as values: copies that share nothing, and merges of two.

For user code and tests that hold two contexts in their hands; a run merges the patches of its branches by `flujo_worker.domain.merge`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import pydantic
from pydantic import BaseModel

from flujo_client.errors import ConfigurationError, ContextMergeError
from flujo_client.schemas.ambiguity import ambiguity
from flujo_client.schemas.fail_fast import fail_fast
from flujo_client.serial import Resolver, Tree, decode, dumps, encode, loads
from flujo_worker.domain.merge import MergeConflict, merge
from flujo_worker.domain.patch import apply, closed, diff, empty_like, opened, same_record

T = TypeVar("T")

_SCRATCHPAD: Final = "scratchpad"


@dataclass(frozen=True)
class ContextManager:
    """Copies and merges contexts. There is one way of each, and its name can be read. Raises ConfigurationError: another strategy is asked for."""

    isolation_strategy: Literal["deep_copy"] = "deep_copy"
    merge_strategy: Literal["safe_merge"] = "safe_merge"

    def __post_init__(self) -> None:
        if (self.isolation_strategy, self.merge_strategy) != ("deep_copy", "safe_merge"):
            what = f"ContextManager has no strategies {self.isolation_strategy!r} and {self.merge_strategy!r}"
            way_out = "use isolation_strategy='deep_copy' and merge_strategy='safe_merge'"
            raise ConfigurationError(what, suggestion=way_out)

    @staticmethod
    def isolate_context(context: T) -> T:
        """Return an equal context that shares nothing mutable with this one, made the way a message makes it.

        Private attributes start from their defaults.

        Raises SerializationError: something in it cannot travel; the place is named.
        """
        copied: T = _rebuilt(encode(context, path="context"))
        return copied

    @staticmethod
    def merge_context_updates(main: T, branch: T | None, base: T | None = None) -> T:
        """Return a new context with the updates of `branch` merged into `main`, checked once by its model.

        With `base`, the context that both began with, it is the merge of a fan-out under `context_update`. Without it no one
        knows who changed what: mappings and models are looked into, lists get what they lack, sets join, and all else that the
        branch has set wins, but for None.

        Raises:
            ContextMergeError: two changes do not go together, the classes differ, or the result does not fit its model.
            SerializationError: something in a context cannot travel.
        """
        if branch is None:
            return ContextManager.isolate_context(main)
        ours, theirs = _trees(main, branch)
        merged = _overlaid(ours, theirs) if base is None else _three_way(encode(base, path="base"), ours, theirs)
        context: T = _checked(_rebuilt(merged))
        return context

    @staticmethod
    def accumulate_loop_context(current: T, iteration: T | None) -> T:
        """Return the context that the next iteration begins with: this one's, on the scratchpad so far.

        Call it for iterations that succeeded. Keys of `scratchpad` that the iteration lacks are retained.

        Raises:
            ContextMergeError: the classes differ, or the result does not fit its model.
            SerializationError: something in a context cannot travel.
        """
        if iteration is None:
            return ContextManager.isolate_context(current)
        context: T = _checked(_rebuilt(_with_scratchpad(*_trees(current, iteration))))
        return context


def _rebuilt(tree: Tree) -> Any:
    # `encode` has just seen that each reference names the very class in the context: nothing is imported here.
    return decode(loads(dumps(tree)), resolve=Resolver(["*"]), path="context")


def _trees(main: Any, branch: Any) -> tuple[Tree, Tree]:
    ours, theirs = encode(main, path="main"), encode(branch, path="branch")
    if not same_record(ours, theirs):
        what = f"a {type(branch).__name__} cannot be merged into a {type(main).__name__}"
        raise ContextMergeError(what, suggestion="merge models of one class, or plain dicts")
    return ours, theirs


def _checked(context: Any) -> Any:
    """Run the model's validators once on the whole; the set of assigned fields stays as merged."""
    if not isinstance(context, BaseModel):
        return context
    model = type(context)
    if ambiguous := ambiguity(model, dict(context)):
        raise ContextMergeError(f"the merged context does not fit {model.__name__}: {ambiguous}")
    try:
        fail_fast(model, dict(context), by_name=True, by_alias=False)
        checked = model.model_validate(dict(context), by_name=True, by_alias=False)
    except pydantic.ValidationError as error:
        places = ", ".join(f"{'.'.join(map(str, each['loc']))} ({each['type']})" for each in error.errors())
        reason = f"the merged context does not fit {model.__name__}: {places}"
    else:
        object.__setattr__(checked, "__pydantic_fields_set__", context.model_fields_set)  # frozen models too
        return checked
    raise ContextMergeError(reason)  # without its cause, which shows the values


def _three_way(base: Tree, ours: Tree, theirs: Tree) -> Tree:
    patches = [("main", diff(base, ours)), ("branch", diff(base, theirs))]
    try:
        return merge(base, patches, strategy="context_update")
    except MergeConflict as conflict:
        way_out = "change it in one of them, or make it a list, a set, a mapping or a counter"
        raise ContextMergeError(str(conflict), suggestion=way_out) from conflict


def _overlaid(ours: Tree, theirs: Tree, *, was_set: bool = True) -> Tree:
    """Merge one tree over another without knowing what both began with."""
    if theirs is None:
        return ours
    if same_record(ours, theirs):
        return _overlaid_names(ours, theirs)
    if type(ours) is list and type(theirs) is list:
        return [*ours, *_missing(ours, theirs)]
    if (empty := empty_like(theirs)) is not None and empty == empty_like(ours):
        return apply(ours, diff(empty, theirs))
    return theirs if was_set else ours


def _overlaid_names(ours: Tree, theirs: Tree) -> Tree:
    merged, over = opened(ours), opened(theirs)
    were_set = over.get("s")
    for section, names in over.items():
        into = merged[section] = dict(merged[section])
        for name, item in names.items():
            is_set = were_set is None or name in were_set
            into[name] = _overlaid(into[name], item, was_set=is_set) if name in into else item
    return closed(ours, merged)


def _missing(ours: list[Tree], theirs: list[Tree]) -> list[Tree]:
    """Return the items that occur more often in `theirs`, in their order, as often as they do."""
    left = Counter(map(dumps, ours))
    missing = []
    for item in theirs:
        key = dumps(item)
        if left[key]:
            left[key] -= 1
        else:
            missing.append(item)
    return missing


def _with_scratchpad(ours: Tree, theirs: Tree) -> Tree:
    old, new = opened(ours), opened(theirs)
    for section in old.keys() & {"v", "x"}:
        kept = old[section].get(_SCRATCHPAD)
        now = new[section].get(_SCRATCHPAD, kept)
        if same_record(kept, now):
            pads = {part: {**names, **opened(now)[part]} for part, names in opened(kept).items()}
            new[section] = {**new[section], _SCRATCHPAD: closed(now, pads)}
    return closed(theirs, new)
