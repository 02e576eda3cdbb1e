"""The reference's contexts: how outputs enter them, what imports pass in and out, and C-46 on Python values.

It is independent of the engine: no patches and no trees. In: models; out: models, or Stop.
"""

from copy import deepcopy
from typing import Any

import pydantic
from pydantic import BaseModel

from flujo_client.contract.context import TASK_FIELDS, PipelineContext
from flujo_client.errors import ContextFieldError, ContextMergeError, PipelineAbortSignal, PipelineError

GONE: Any = ...
"""Stands where a mapping has no such key."""


class Stop(Exception):
    """A node has failed permanently; its sequence ends with the value and the context it had."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(type(error).__name__)
        self.kind, self.is_final = type(error).__name__, isinstance(error, PipelineAbortSignal)
        self.value: Any = None
        self.context: Any = None


def absorbed(step: Any, output: Any, context: Any) -> Any:
    if context is None:
        return None
    head, _, key = (step.sink_to or "").partition(".")
    if key:
        place = getattr(context, head, None)
        if not isinstance(place, dict):
            raise Stop(ContextFieldError(""))
        place[key] = output
    elif head:
        context = _assigned(context, {head: output})
    if step.updates_context:
        is_model = isinstance(output, BaseModel)
        changes = {name: getattr(output, name) for name in output.model_fields_set} if is_model else output
        if not isinstance(changes, dict):
            raise Stop(ContextMergeError(""))
        context = _assigned(context, {key: _deep(getattr(context, key, None), each) for key, each in changes.items()})
    keep(context, step.name, output)
    return context


def _assigned(context: Any, changes: dict[str, Any]) -> Any:
    values = dict(context) | (context.model_extra or {}) | deepcopy(changes)
    is_open = type(context).model_config.get("extra") == "allow"
    if not is_open and values.keys() - type(context).model_fields.keys():
        raise Stop(ContextFieldError(""))
    try:
        return type(context).model_validate(values)
    except pydantic.ValidationError:
        raise Stop(ContextMergeError("")) from None


def _validated(model: Any, values: dict[str, Any]) -> Any:
    try:
        return model.model_validate(values)
    except pydantic.ValidationError:
        raise Stop(ContextMergeError("")) from None


def _deep(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: _deep(old.get(key), each) for key, each in new.items()}
    return new


def keep(context: Any, name: str, output: Any) -> None:
    if isinstance(getattr(context, "step_outputs", None), dict):
        context.step_outputs[name] = deepcopy(output)


def included(step: Any, context: Any) -> Any:
    if step.context_include_keys is None or context is None:
        return context
    given = {key: getattr(context, key) for key in step.context_include_keys if hasattr(context, key)}
    return type(context)(**deepcopy(given))


def imported(step: Any, value: Any, context: Any) -> Any:
    model = getattr(step.pipeline, "context_model", None)
    if step.inherit_context:
        inside = deepcopy(context)
    elif model is not None:
        inside = model(**deepcopy(step.begins_with(context)))
    else:
        inside = None if context is None else PipelineContext()
    if step.input_to in ("initial_prompt", "both") and hasattr(inside, "initial_prompt") and isinstance(value, str):
        inside.initial_prompt = value
    if step.input_to in ("import_artifacts", "both") and inside is not None:
        inside.import_artifacts[step.input_scratchpad_key] = deepcopy(value)
    return inside


def exported(step: Any, context: Any, inside: Any) -> Any:
    if context is None or inside is None or (step.outputs is not None and not step.outputs):
        return context
    context = deepcopy(context)
    if step.outputs is None:
        own = {"run_id", "initial_prompt", "status", "import_artifacts", *TASK_FIELDS}
        both = ({*_names(context)} | ({*_names(inside)} if _takes_all(context, inside) else set())) - own
        for name in _names(inside):
            if name in both:
                kept = getattr(context, name, None) if name == "step_outputs" else None
                setattr(context, name, {**(kept or {}), **getattr(inside, name)} if kept else getattr(inside, name))
    for source, target in step.outputs or ():
        head, _, key = target.partition(".")
        if source not in _names(inside) or (key and head not in _names(context)):
            raise Stop(PipelineError(""))
        if key:
            getattr(context, head)[key] = getattr(inside, source)
        else:
            setattr(context, head, getattr(inside, source))
    return _validated(type(context), dict(context) | (context.model_extra or {}))


def _names(context: BaseModel) -> list[str]:
    return [*type(context).model_fields, *(context.model_extra or {})]


def _takes_all(context: BaseModel, inside: BaseModel) -> bool:
    return type(context).model_config.get("extra") == "allow" and isinstance(context, type(inside))


def in_state(context: Any, state: str) -> Any:
    context = deepcopy(context)
    if hasattr(context, "current_state"):
        context.current_state = state
        if hasattr(context, "next_state"):
            context.next_state = None
    return context


def merged(step: Any, context: Any, start: Any, ended: dict[str, Any], outputs: dict[str, Any]) -> Any:
    if context is None or step.merge_strategy == "no_merge":
        return context
    merged = deepcopy(context)
    if not isinstance(step.merge_strategy, str):
        # a branch that was given some fields alone hands over a whole context, of those and of defaults
        given = step.merge_strategy(merged, deepcopy(ended))
        return merged if given is None else given
    mapping = getattr(step, "field_mapping", None) or {}
    names = dict.fromkeys(name for each in (start, *ended.values()) for name in _names(each))
    for name in names:
        changed = [
            getattr(after, name, GONE)
            for branch, after in ended.items()
            if _differ(getattr(after, name, GONE), getattr(start, name, GONE))
            and (name == "step_outputs" or name in mapping.get(branch, [name]))
        ]
        if changed:
            value = _field(step.merge_strategy, name, getattr(start, name, GONE), getattr(context, name, GONE), changed)
            setattr(merged, name, value)
    for name, after in ended.items() if not getattr(step, "ignore_branch_names", True) else ():
        is_field = name in type(context).model_fields
        if is_field and not _differ(getattr(after, name), getattr(start, name)):
            setattr(merged, name, deepcopy(outputs[name]))
    return _validated(type(merged), dict(merged) | (merged.model_extra or {}))


def _field(strategy: str, name: str, start: Any, ours: Any, changed: list[Any]) -> Any:
    if name == "step_outputs":
        # kept for the branches, not by them: of each entry the last change wins
        entries = [(key, after.get(key, GONE)) for after in changed for key in {**start, **after}]
        new = {**ours, **{key: each for key, each in entries if _differ(each, start.get(key, GONE))}}
        return {key: deepcopy(each) for key, each in new.items() if each is not GONE}
    if strategy in ("overwrite", "keep_first"):
        changed = [changed[-1 if strategy == "overwrite" else 0]]
    return _joined(start, ours, changed, adds=strategy == "context_update")


def _joined(start: Any, ours: Any, changed: list[Any], *, adds: bool) -> Any:
    """One value of those that branches changed. `ours` is what it is merged into: `start`, unless branches saw defaults."""
    kinds = {type(each) for each in changed}
    kind = kinds.pop() if len(kinds) == 1 else None
    if start is GONE and kind is dict and (len(changed) > 1):
        return _joined({}, {}, changed, adds=adds)
    if start is GONE and adds and len(changed) > 1 and kind in (list, set):
        start = ours = kind()
    if kind is dict and type(start) is dict:
        return _joined_names(start, ours, changed, adds=adds)
    alone = all(not _differ(each, changed[0]) for each in changed)
    if kind is type(start) and (adds or alone):
        changed = changed if adds else changed[:1]
        if kind is int:
            return ours + sum(each - start for each in changed)
        if kind is list and all(not _differ(each[: len(start)], start) for each in changed):
            return [*ours, *(item for each in changed for item in each[len(start) :])]
        if kind is set:
            return (ours | set().union(*(each - start for each in changed))) - set().union(
                *(start - each for each in changed)
            )
    if kind is bool and adds:
        return any(changed)
    if not alone:
        raise Stop(ContextMergeError(""))
    return deepcopy(changed[0])


def _joined_names(start: Any, ours: Any, changed: list[Any], *, adds: bool) -> dict[str, Any]:
    joined = dict(ours)
    for key in dict.fromkeys(key for each in (start, *changed) for key in each):
        was = start.get(key, GONE)
        now = [each.get(key, GONE) for each in changed if _differ(each.get(key, GONE), was)]
        if not now:
            continue
        value = _joined(was, ours.get(key, GONE), now, adds=adds)
        joined[key] = value
        if value is GONE:
            del joined[key]
    return joined


def _differ(one: Any, other: Any) -> bool:
    """1 is not True, nor 1.0."""
    if type(one) is not type(other):
        return True
    if isinstance(one, dict):
        return one.keys() != other.keys() or any(_differ(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) != len(other) or any(map(_differ, one, other))
    return bool(one != other)
