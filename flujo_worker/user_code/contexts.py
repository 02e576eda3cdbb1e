"""Questions about contexts: what a branch starts from and changed, how branches are merged, what an import sees and hands out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pydantic
from pydantic import BaseModel

from flujo_client.contract.context import TASK_FIELDS, PipelineContext
from flujo_client.contract.results import StepResult
from flujo_client.errors import ContextMergeError, PipelineContextInitializationError, PipelineError
from flujo_client.pipeline.submit import build_context
from flujo_client.plan import kinds
from flujo_client.schemas.ambiguity import ambiguity
from flujo_client.schemas.fail_fast import fail_fast
from flujo_client.serial import Packed, decode
from flujo_worker.domain.conversation import settled
from flujo_worker.domain.merge import MergeConflict, merge
from flujo_worker.domain.patch import apply, diff
from flujo_worker.runtime.call_args import CONTEXT
from flujo_worker.runtime.question import UserCodeCall, checked, field_at, put

_KEPT = ("step_outputs",)
_PER_RUN = ("run_id", "initial_prompt", "status", "import_artifacts", *TASK_FIELDS)
_OF_A_CONTEXT = ("command_log",)
"""Fields that an import with its own context does not pass up: an agentic loop around it continues with its own turns."""


def patch(question: UserCodeCall) -> Packed | None:
    """Return what a branch changed. Values: the context it started from, the one it ended with."""
    changed = diff(question.tree(0), question.tree(1))
    return None if changed is None else question.pack_tree(changed, "patch")


def snapshot(question: UserCodeCall) -> Packed:
    """Make a context with some fields only, defaults for the rest. Value: the whole context."""
    context, include = question.value(0), question.data["include"]
    model = type(context)
    values = {name: getattr(context, name) for name in include if hasattr(context, name)}
    if ambiguous := ambiguity(model, values):
        raise ContextMergeError(f"the fields of context_include_keys do not fit {model.__name__}: {ambiguous}")
    try:
        fail_fast(model, values, by_name=True)
        return question.pack(model.model_validate(values, by_name=True), "context")
    except pydantic.ValidationError as error:
        missing = ", ".join(".".join(map(str, each["loc"])) for each in error.errors())
        message = f"context_include_keys leave out {missing}, for which {model.__name__} has no default"
        raise ContextMergeError(message) from None


def keep_output(question: UserCodeCall) -> Packed:
    """Add a container's output to the context's `step_outputs`. Values: the context, the output."""
    packed, stored = question.values[0], question.stored(0)
    if packed is None or stored is None:
        return Packed.of(None)
    if stored.add_output(question.data["name"], question.tree(1)):
        return question.bounded(stored.packed(), "context")
    context = question.value(0)
    if not isinstance(getattr(context, "step_outputs", None), dict):
        return packed
    context.step_outputs[question.data["name"]] = question.value(1)
    return question.pack(context, "context")


def turns(question: UserCodeCall) -> Packed | None:
    """Return the context at an iteration's end, without the dropped turns.

    Values: the context that it began with, the one it ended with. Data: the `steps` whose turns count.
    """
    before, after = question.value(0), question.value(1)
    history = getattr(after, "conversation_history", None) or []
    kept = settled(getattr(before, "conversation_history", None) or [], history, question.data["steps"])
    if len(kept) == len(history):
        return question.values[1]
    put(after, "conversation_history", kept)
    return question.pack(checked(after), "context")


def join(question: UserCodeCall) -> tuple[Packed, Packed | None]:
    """Make a fan-out's output and its sequence's new context.

    Values: the sequence's context, the one the branches started from, then each branch's patch and output, in declared order.
    """
    branches = question.data["branches"]
    patches, outputs = question.values[2::2], question.values[3::2]
    given: dict[str, Any] = {}
    done: dict[str, Packed | None] = {}
    for each, patch, output in zip(branches, patches, outputs, strict=True):
        name = each["name"]
        if each["status"] == "succeeded":
            given[name], done[name] = question.live(output), patch
        else:
            given[name] = StepResult(name=name, success=False, feedback=each["feedback"])
    return question.pack(_reduced(question, given), "output"), _merged(question, done, given)


def _reduced(question: UserCodeCall, given: dict[str, Any]) -> Any:
    if question.step.spec is kinds.MAP:
        return list(given.values())
    reduce = question.step.rules().get("reduce")
    if reduce is None:
        return given
    return question.call("reduce", given) if reduce == "callable" else _REDUCERS[reduce](given)


def _union(given: dict[str, Any]) -> dict[Any, Any]:
    wrong = [name for name, output in given.items() if not isinstance(output, dict)]
    if wrong:
        raise PipelineError(f"reduce 'union' needs mappings; branch '{wrong[0]}' gave another kind of output")
    return {key: value for output in given.values() for key, value in output.items()}


def _concat(given: dict[str, Any]) -> Any:
    outputs = list(given.values())
    if all(isinstance(output, str) for output in outputs):
        return "".join(outputs)
    return [item for output in outputs for item in (output if isinstance(output, (list, tuple)) else [output])]


_REDUCERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "keys": list,
    "values": lambda given: list(given.values()),
    "union": _union,
    "concat": _concat,
    "first": lambda given: next(iter(given.values()), None),
    "last": lambda given: next(reversed(given.values()), None),
}


def _merged(question: UserCodeCall, done: dict[str, Packed | None], given: dict[str, Any]) -> Packed | None:
    before, rules = question.values[0], question.step.rules()
    if before is None:
        return None
    strategy = rules["strategy"]
    if strategy == "callable":
        return question.pack(checked(_custom(question, done)), "context")
    named = {} if rules.get("ignore_names", True) or strategy == "no_merge" else _named_fields(question, done, given)
    if not named and (strategy == "no_merge" or not any(done.values())):
        return before
    patches = [(name, None if packed is None else packed.tree()) for name, packed in done.items()]
    try:
        tree = merge(before.tree(), patches, strategy=strategy, fields=rules.get("fields"), last_wins=_KEPT)
    except MergeConflict as conflict:
        way_out = "use different fields in the branches, set field_mapping, or choose another merge_strategy"
        raise ContextMergeError(str(conflict), suggestion=way_out) from None
    context = decode(tree, resolve=question.bench.resolve)
    try:
        for name, output in named.items():
            put(context, name, output)
        return question.pack(checked(context), "context")
    except ContextMergeError as error:
        if not named:
            raise
        fields = ", ".join(f"'{name}'" for name in named)
        hint = f"the outputs of branches {fields} go to the fields of these names; rename the branches, or set ignore_branch_names=True"
        raise ContextMergeError(error.message, suggestion=hint) from None


def _named_fields(question: UserCodeCall, done: dict[str, Packed | None], given: dict[str, Any]) -> dict[str, Any]:
    """Put each branch's output into the context's field of the branch's name, unless the branch wrote it itself."""
    model = type(question.value(0))
    fields = [name for name in done if name in getattr(model, "model_fields", ())]
    if not fields:
        return {}
    start = question.tree(1)
    return {name: given[name] for name in fields if not _written(start, done[name], name)}


def _written(start: Any, changed: Packed | None, name: str) -> bool:
    if changed is None:
        return False
    after = apply(start, changed.tree())
    return bool(start["v"].get(name) != after["v"].get(name))


def _custom(question: UserCodeCall, done: dict[str, Packed | None]) -> Any:
    """Let the user's function merge: it gets the context and each branch's, and may change the context or return another."""
    start, context = question.tree(1), question.value(0)
    trees = {name: start if packed is None else apply(start, packed.tree()) for name, packed in done.items()}
    ended = {name: decode(tree, resolve=question.bench.resolve) for name, tree in trees.items()}
    given = question.call("merge", context, ended)
    if given is not None and not isinstance(given, BaseModel):
        raise ContextMergeError(f"the merge function must return a context or None, got a {type(given).__name__}")
    return context if given is None else given


def import_context(question: UserCodeCall) -> Packed | None:
    """Make the context an imported pipeline begins with. Values: the importing sequence's context, the input. Data: a child run's `run_id`."""
    step, parent = question.step, question.value(0)
    context = parent if step.inherit_context else None
    if context is None:
        model = getattr(step.pipeline, "context_model", None)
        if model is None and parent is None:
            return None
        try:
            context = build_context(step.begins_with(parent), model)
        except PipelineContextInitializationError as error:
            raise PipelineContextInitializationError(error.message) from None  # the cause would show values
    if context is None:
        return None
    if "run_id" in question.data and isinstance(context, PipelineContext):
        put(context, "run_id", question.data["run_id"])
    return question.pack(_with_input(step, context, question.value(1)), "context of the import")


def _with_input(step: Any, context: Any, value: Any) -> Any:
    if step.input_to in ("initial_prompt", "both") and hasattr(context, "initial_prompt") and isinstance(value, str):
        put(context, "initial_prompt", value)
    if step.input_to in ("import_artifacts", "both"):
        artifacts = getattr(context, "import_artifacts", None)
        if isinstance(artifacts, dict):
            artifacts[step.input_scratchpad_key] = value
        elif type(context).model_config.get("extra") == "allow":
            context.import_artifacts = {step.input_scratchpad_key: value}
        else:
            raise PipelineError(f"input_to needs a field import_artifacts in {type(context).__name__}")
    return context


def task_context(question: UserCodeCall) -> Packed:
    """Make a background run's context: a copy with the ids in data, where it has fields for them. Value: that of the sequence that launches it."""
    context, ids = question.value(0), question.data
    values = {"run_id": ids["task_id"], "is_background_task": True, **ids}
    for name in values.keys() & type(context).model_fields.keys():
        put(context, name, values[name])
    return question.pack(context, "context of the background run")


def export_context(question: UserCodeCall) -> Packed | None:
    """Make the importing sequence's context after the import. Values: it before, the imported pipeline's at its end."""
    step, parent, child = question.step, question.value(0), question.value(1)
    if parent is None or child is None or (step.outputs is not None and not step.outputs):
        return question.values[0]
    if step.outputs is None:
        _hand_all(parent, child, () if step.inherit_context else _OF_A_CONTEXT)
    else:
        pairs = step.outputs.items() if isinstance(step.outputs, dict) else step.outputs
        for source, target in pairs:
            head, _, last = target.rpartition(".")
            put(field_at(parent, head) if head else parent, last, field_at(child, source))
    return question.pack(checked(parent), "context")


def _hand_all(parent: Any, child: Any, kept: tuple[str, ...]) -> None:
    """Pass up every field that both have, except those of a single run and those in `kept`; the steps before the import keep their outputs."""
    may_have = type(parent).model_config.get("extra") == "allow" and isinstance(parent, type(child))
    known = {*type(parent).model_fields, *(parent.model_extra or {})}
    for name in (*type(child).model_fields, *(child.model_extra or {})):
        if name not in (*_PER_RUN, *kept) and (name in known or may_have):
            before, after = getattr(parent, name, None), getattr(child, name)
            if name in _KEPT and isinstance(before, dict) and isinstance(after, dict):
                after = {**before, **after}
            put(parent, name, after)


def next_state(question: UserCodeCall) -> tuple[str | None, Packed | None]:
    """Return where a state machine goes: the state, or None; and the context, which says so where it has fields for it.

    Values: the last output, the context. Data: `from`, the state that ended (None at the beginning), and the `event`.
    """
    context = question.value(1)
    following = _transition(question, context)
    if context is None or not hasattr(context, "current_state"):
        return following, question.values[1]
    if following is not None:
        put(context, "current_state", following)
    if getattr(context, "next_state", None) is not None:
        put(context, "next_state", None)
    return following, question.pack(context, "context")


def _transition(question: UserCodeCall, context: Any) -> str | None:
    step, before, event = question.step, question.data["from"], question.data["event"]
    if before is None:
        return str(step.start_state)
    for place, transition in enumerate(step.rules()["transitions"]):
        if transition["from"] not in (before, "*") or transition["on"] != event:
            continue
        when = step.when(place) if transition["when"] else None
        if when is None or question.call_function(when, question.value(0), CONTEXT, context=lambda: context):
            return str(transition["to"])
    wanted = getattr(context, "next_state", None) if event == "success" else None
    if wanted is None or wanted in step.rules()["ends"] or wanted in step.states:
        return wanted
    raise PipelineError(f"the context's next_state is '{wanted}', but the machine has no such state")
