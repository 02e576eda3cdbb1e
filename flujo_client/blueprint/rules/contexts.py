"""V-C, CTX-OUTPUT-KEYS: what steps put into the context, compared with its model. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flujo_client.blueprint.finding import Path, nearest, shown
from flujo_client.blueprint.rules.document_index import DocumentIndex, StepNode
from flujo_client.blueprint.rules.model import UNKNOWN, Fields
from flujo_client.blueprint.rules.outputs import changed, properties, schema_of, type_of
from flujo_client.blueprint.rules.table import RuleFinding

_ALIKE = {("integer", "number"), ("array", "object")}


def rules(doc: DocumentIndex) -> Iterator[RuleFinding]:
    """Check every step that writes the context; the pipeline's check reports a missing context."""
    for step in doc.steps:
        context = doc.context_at(step)
        if context is not None:
            yield from _merged(doc, step, context)
            yield from _received(doc, step, context)
            yield from _changed(step, context)


def _merged(doc: DocumentIndex, step: StepNode, context: Fields) -> Iterator[RuleFinding]:
    if step.data.get("updates_context") is not True:
        return
    schema = schema_of(doc, step)
    kind = type_of(schema)
    if kind is not None and kind != "object":
        message = f"its output is {'a text' if kind == 'string' else f'of type {shown(kind)}'}, but only a mapping can be merged"
        allowed = "put it into a field with sink_to, or give the agent an output_schema of type object"
        yield RuleFinding("V-C2", (*step.path, "updates_context"), message, allowed)
    if not _is_held_to(step, context):
        return
    for name in properties(schema) or ():
        if name not in context.types:
            message = f"its output has '{shown(name)}', but {context.called} has no such field"
            near = nearest(name, context.types)
            yield RuleFinding("CTX-OUTPUT-KEYS", (*step.path, "updates_context"), message, _known(context, near), near)


def _received(doc: DocumentIndex, step: StepNode, context: Fields) -> Iterator[RuleFinding]:
    target = step.data.get("sink_to")
    first = str(target).partition(".")[0]
    if target is not None and _is_held_to(step, context) and first not in context.types:
        yield _no_field((*step.path, "sink_to"), target, context)
    given, taken = type_of(schema_of(doc, step)), context.types.get(str(target))
    if given and taken and given != taken and (given, taken) not in _ALIKE:
        message = f"the output is of type {given}, and '{shown(target)}' of {context.called} of type {taken}"
        yield RuleFinding("V-C3", (*step.path, "sink_to"), message)


def _is_held_to(step: StepNode, context: Fields) -> bool:
    """Return whether a step may write only to fields of the context's model."""
    return not context.is_open or (step.data.get("validate_fields") is True and context is not UNKNOWN)


def _changed(step: StepNode, context: Fields) -> Iterator[RuleFinding]:
    """Check a loop's or map's changes, which `check` sees as a function that may do anything."""
    for path, target in changed(step) if not context.is_open else ():
        if str(target).partition(".")[0] not in context.types:
            yield _no_field(path, target, context)


def _no_field(path: Path, target: Any, context: Fields) -> RuleFinding:
    near = nearest(str(target).partition(".")[0], context.types)
    return RuleFinding(
        "V-C1", path, f"'{shown(target)}' is not a field of {context.called}", _known(context, near), near
    )


def _known(context: Fields, near: str | None) -> str | None:
    return None if near else f"it has {', '.join(map(shown, list(context.types)[:20]))}"
