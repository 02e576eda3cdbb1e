"""V-T, V-CTX: what templates and expressions read. V-C, CTX-OUTPUT-KEYS: what steps put into the context. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from flujo_client.blueprint.finding import Path, meant, shown
from flujo_client.blueprint.rules.document_index import Data, DocumentIndex, StepNode, TextNode, is_before
from flujo_client.blueprint.rules.model import UNKNOWN, Fields, type_of
from flujo_client.blueprint.rules.outputs import changed, properties, schema_of
from flujo_client.blueprint.rules.table import RuleFinding, Severity

_JINJA_BLOCK = re.compile(
    r"\{%[-+]?\s*(if|elif|else|endif|for|endfor|set|raw|block|macro|include|filter|with)\b[^%\n]{0,40}%\}"
)
_BLOCKS = {
    **dict.fromkeys(("if", "elif", "else", "endif"), "write {{#if …}}…{{else}}…{{/if}}"),
    **dict.fromkeys(("for", "endfor"), "write {{#each list}}{{ this }}{{/each}}"),
}

_MOST_ALIKE = 50
"""Steps of one name that are examined; further ones are not reported."""


def rules(doc: DocumentIndex) -> Iterator[RuleFinding]:
    """Check every path that a text reads, and every step that writes the context."""
    for text in doc.texts:
        if block := _JINJA_BLOCK.search(text.text):
            message = f"'{block[0]}' is plain text here and is sent unchanged"
            yield RuleFinding("V-T7", text.path, message, _BLOCKS.get(block[1], "blocks are {{#if …}} and {{#each …}}"))
        for names in sorted(text.names):
            if names[0] in _BY_ROOT:
                yield from _BY_ROOT[names[0]](doc, text, names)
    yield from _context_rules(doc)


def disabled_filters(doc: DocumentIndex, enabled: Callable[[], Collection[str]]) -> Iterator[RuleFinding]:
    """Find filters that the project has not enabled; it is asked only for documents that use any."""
    for text in doc.texts:
        for name in sorted(text.filters):
            if name not in (known := enabled()):
                message = f"the project's validation.enabled_template_filters does not have '{name}'"
                yield RuleFinding("V-T8", text.path, message, f"enabled: {', '.join(known) or 'none'}")


def _this(_: DocumentIndex, text: TextNode, __: tuple[str, ...]) -> Iterator[RuleFinding]:
    above = text.at.line if text.after else text.at.line[:-1]
    if not any(each.kind and each.kind.has_item for each in above):
        message = "`this` is an item only in a map; here it is the same as `previous_step`"
        yield RuleFinding("V-T2", text.path, message, nearest="previous_step")


def _context(doc: DocumentIndex, text: TextNode, names: tuple[str, ...]) -> Iterator[RuleFinding]:
    context = doc.context_at(text.at)
    if context is None:
        if not doc.is_part:
            yield _no_context(text, ".".join(names[:2]))
    elif len(names) > 1 and not context.is_open and names[1] not in context.types:
        message = f"`context.{shown(names[1])}`: {context.called} has no such field"
        yield RuleFinding("V-CTX1", text.path, message, *meant(names[1], context.types))


def _no_context(text: TextNode, read: str) -> RuleFinding:
    message = f"`{read}` does not exist: the pipeline has no context (context_model: null)"
    return RuleFinding("V-CTX2", text.path, message, "leave context_model out for a PipelineContext")


def _answer(doc: DocumentIndex, text: TextNode, _: tuple[str, ...]) -> Iterator[RuleFinding]:
    if doc.context_at(text.at) is None and not doc.is_part:
        yield _no_context(text, "resume_input")


def _previous(doc: DocumentIndex, text: TextNode, names: tuple[str, ...]) -> Iterator[RuleFinding]:
    before = None if text.after else text.at.before
    schema = None if before is None else schema_of(doc, before)
    known = properties(schema)
    if len(names) > 1 and names[1] == "output" and (known is None or "output" not in known):
        message = "`previous_step` is the output itself, which has no `.output`"
        severity: Severity | None = "error" if type_of(schema) in _A else None
        path = ".".join(("previous_step", *names[2:]))
        yield RuleFinding("V-T3", text.path, message, nearest=path, severity=severity)
    elif before is not None and schema is not None:
        yield from _field(text, names, 1, before, schema)


def _steps(doc: DocumentIndex, text: TextNode, names: tuple[str, ...]) -> Iterator[RuleFinding]:
    if len(names) == 1:
        return
    context = doc.context_at(text.at)
    if context is None and not doc.is_part:
        yield _no_context(text, f"steps.{names[1]}")
        return
    if context is not None and not context.is_open and "step_outputs" not in context.types:
        message = f"`steps.{shown(names[1])}` does not exist: {context.called} has no field step_outputs"
        yield RuleFinding("V-CTX2", text.path, message, "give the model `step_outputs: dict[str, Any] = {}`")
        return
    found = doc.by_name.get(names[1], ())
    if not found:
        yield from _unknown(doc, text, names[1])
        return
    found = [each for each in found if each.search is text.at.search]
    if not found:
        message = f"`steps.{shown(names[1])}` runs in another context: a tree search has its own"
        within, outside = "its output is under `context.outer`", "read the search's own output instead"
        yield RuleFinding("V-CTX2", text.path, message, outside if text.at.search is None else within)
        return
    if len(names) > 2 and names[2] != "output":  # noqa: PLR2004 - steps, name, what of it
        message = f"`steps.{shown(names[1])}` has its output under `.output` and nothing else"
        yield RuleFinding("V-T3", text.path, message, nearest=".".join(("steps", names[1], "output", *names[2:])))
        return
    if len(found) <= _MOST_ALIKE and not any(is_before(each, text) for each in found):
        message = f"`steps.{shown(names[1])}` cannot have run yet where this is read"
        yield RuleFinding("V-T5", text.path, message)
    schema = schema_of(doc, found[0]) if len(found) == 1 else None
    if schema is not None:
        yield from _field(text, names, 3, found[0], schema)


def _unknown(doc: DocumentIndex, text: TextNode, name: str) -> Iterator[RuleFinding]:
    if doc.is_part or doc.table("imports"):
        return  # steps of the importer, or of what is imported, may have it
    allowed, near = meant(name, doc.by_name, "there are")
    message = f"`steps.{shown(name)}`: no step has this name"
    yield RuleFinding("V-T4", text.path, message, allowed, f"steps.{near}" if near else None)


def _field(text: TextNode, names: tuple[str, ...], at: int, step: StepNode, schema: Data) -> Iterator[RuleFinding]:
    if len(names) <= at:
        return
    read = ".".join(names[: at + 1])
    kind = type_of(schema) or ""
    if kind in _A:
        message = f"`{shown(read)}`: '{shown(step.name)}' answers with {_A[kind]}, which has no fields"
        yield RuleFinding("V-T6", text.path, message, "give its agent an output_schema" if kind == "string" else None)
        return
    known = properties(schema)
    if known is None or names[at] in known:
        return
    allowed, near = meant(names[at], known)
    message = f"`{shown(read)}`: the output_schema of '{shown(step.name)}' has no such property"
    path = ".".join((*names[:at], near)) if near else None
    severity: Severity | None = None if schema.get("additionalProperties") is False else "warning"
    yield RuleFinding("V-T6", text.path, message, allowed, path, severity)


_A = {"string": "a text", "integer": "a number", "number": "a number", "boolean": "true or false"}
_BY_ROOT = {"this": _this, "context": _context, "previous_step": _previous, "steps": _steps, "resume_input": _answer}
_ALIKE = {("integer", "number"), ("array", "object")}


def _context_rules(doc: DocumentIndex) -> Iterator[RuleFinding]:
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
            path = (*step.path, "updates_context")
            yield RuleFinding("CTX-OUTPUT-KEYS", path, message, *meant(name, context.types))


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
    message = f"'{shown(target)}' is not a field of {context.called}"
    return RuleFinding("V-C1", path, message, *meant(str(target).partition(".")[0], context.types))
