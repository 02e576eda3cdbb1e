"""V-L, V-CF, V-P, V-I, HITL-NESTED: where a run goes, and where it cannot; imports, and the steps that run them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from flujo_client.blueprint.finding import Path, nearest, shown
from flujo_client.blueprint.kind import KINDS
from flujo_client.blueprint.rules.document_index import DocumentIndex, StepNode, TextNode, search_of
from flujo_client.blueprint.rules.machines import of_machine
from flujo_client.blueprint.rules.outputs import properties, schema_of, writes
from flujo_client.blueprint.rules.table import RuleFinding
from flujo_client.errors import BlueprintTextError
from flujo_client.expressions.nodes import Comparison, Not
from flujo_client.pipeline.compiled_text import expression_of
from flujo_client.plan import kinds
from flujo_client.plan.kinds import KindSpec

NO_ANSWER: Final = object()


def rules(doc: DocumentIndex) -> Iterator[RuleFinding]:
    """Check every container, and every import."""
    for step in doc.steps:
        if step.spec in _OF_KIND:
            yield from _OF_KIND[step.spec](doc, step)
    yield from _import_rules(doc)


def _of_loop(doc: DocumentIndex, step: StepNode) -> Iterator[RuleFinding]:
    """Check whether a loop can end."""
    text = next((each for each in doc.texts_of(step) if each.path[-1] == "exit_expression"), None)
    if step.table("loop").get("stop_when") == "agent_finished":
        yield from _finishes(doc, step)
    if text is None:
        return
    constant = _constant(text)
    if constant is not NO_ANSWER:
        message = "it reads nothing, so its answer is always the same: " + (
            "the loop ends after one iteration" if constant else "only max_loops ends the loop"
        )
        yield RuleFinding("V-L1", text.path, message)
    elif text.names and all(names[0] == "context" and len(names) > 1 for names in text.names):
        yield from _changes(doc, step, text)


def _changes(doc: DocumentIndex, step: StepNode, text: TextNode) -> Iterator[RuleFinding]:
    """Find an end that depends on fields of the context which nothing in the body writes."""
    read = {names[1] for names in text.names}
    inside = _sharing(doc, step, (*step.path, "loop", "body"))
    written = [path for each in (step, *inside) for path in writes(doc, each)]
    if None in written or read & {*_WRITTEN_ALWAYS, *(str(path).partition(".")[0] for path in written)}:
        return
    if any(each.spec is kinds.PARALLEL and each.data.get("ignore_branch_names") is not True for each in inside):
        return  # fields of the branches' names receive their outputs
    message = f"nothing in its body writes {', '.join(f'context.{shown(each)}' for each in sorted(read))}, so only max_loops ends the loop"
    yield RuleFinding("V-L1", text.path, message, "write it with sink_to, updates_context or the loop's `state`")


_WRITTEN_ALWAYS: Final = (
    "step_outputs",
    "hitl_history",
    "conversation_history",
    "call_count",
    "status",
    "import_artifacts",
)


def _finishes(doc: DocumentIndex, step: StepNode) -> Iterator[RuleFinding]:
    body = [each for each in doc.within((*step.path, "loop", "body")) if each.above is step]
    schema = schema_of(doc, body[-1]) if body else None
    if schema is None:
        return
    known = properties(schema)
    if (known is None and schema.get("type") == "string") or (
        known is not None and not {"action", "type"} & set(known)
    ):
        message = f"'{shown(body[-1].name)}' never answers with `action` or `type`, so only max_loops ends the loop"
        yield RuleFinding(
            "V-L1",
            (*step.path, "loop", "stop_when"),
            message,
            "agent_finished needs an output whose action or type is `finish`",
        )


def _sharing(doc: DocumentIndex, container: StepNode, path: Path) -> list[StepNode]:
    """List the steps at a path in a container that run in its context, not in that of a tree search in it."""
    return [each for each in doc.within(path) if search_of(each) is search_of(container)]


def _constant(text: TextNode) -> Any:
    """Return the answer of an expression that reads nothing."""
    if text.names:
        return NO_ANSWER
    try:
        return bool(expression_of(text.text).evaluate({}))
    except BlueprintTextError:
        return NO_ANSWER
    except Exception:  # noqa: BLE001 - it fails in every run alike, and the run reports it
        return NO_ANSWER


def _of_conditional(doc: DocumentIndex, step: StepNode) -> Iterator[RuleFinding]:
    """Check whether the condition and the branches of a conditional match."""
    text = next(iter(doc.texts_of(step)), None)
    answers = None if text is None else _answers(doc, step, text)
    if text is None or answers is None:
        return
    branches = step.table("branches")
    known = ", ".join(map(shown, answers[:20]))
    keys = {(type(key), key) for key in branches}
    meant = {each for answer in answers for each in _meant(answer)}
    for key in branches:
        if (type(key), key) not in meant:
            near = nearest(key, answers)
            message = f"the condition never returns {shown(key)}"
            yield RuleFinding(
                "V-CF1", (*step.path, "branches", key), message, None if near else f"it returns {known}", near
            )
    if "default_branch" in step.data:
        return
    for answer in answers:
        if not _meant(answer) & keys:
            message = f"the condition may return {shown(answer)}, which fails the step: it has no such branch and no default_branch"
            yield RuleFinding("V-CF1", (*step.path, "branches"), message)


def _answers(doc: DocumentIndex, step: StepNode, text: TextNode) -> list[Any] | None:
    """Return all results that a condition can have, where they are known."""
    try:
        node = expression_of(text.text).node
    except BlueprintTextError:
        return None
    if isinstance(node, Comparison | Not):
        return [True, False]
    before = doc.before(step)
    schema = None if before is None else schema_of(doc, before)
    for path in text.names:
        if len(text.names) == 1 and text.text.strip() in (".".join(path), ".".join(("output", *path[1:]))):
            found = _schema_of(doc, path, schema)
            enum = found.get("enum") if isinstance(found, dict) else None
            plain = isinstance(enum, list) and all(isinstance(each, str | int) for each in enum)
            return list(enum or ()) or None if plain else None
    return None


def _schema_of(doc: DocumentIndex, path: tuple[str, ...], before: Any) -> Any:
    """Return the schema of what a path reads: of the step before, or of one that is named."""
    root, *rest = path
    if root == "steps" and len(rest) > 1 and rest[1] == "output":
        named = doc.by_name.get(rest[0], ())
        before, rest = (schema_of(doc, named[0]) if len(named) == 1 else None), rest[2:]
    elif root != "previous_step":
        return None
    for part in rest:
        before = (properties(before) or {}).get(part)
    return before


def _meant(answer: Any) -> set[tuple[type, Any]]:
    """Return the keys that an answer means, as a run looks for the branch: true and false mean the texts too."""
    return {(type(answer), answer)} | ({(str, str(answer).lower())} if isinstance(answer, bool) else set())


def _of_branches(doc: DocumentIndex, step: StepNode) -> Iterator[RuleFinding]:
    """Check what branches write and read of the context."""
    own = () if step.kind is None or step.kind.own_table is None else (step.kind.own_table,)
    table, path = (step.table(own[0]) if own else step.data), (*step.path, *own)
    branches = table.get("branches")
    if not isinstance(branches, dict):
        return
    yield from _clashes(doc, step, {name: (*path, "branches", name) for name in branches})
    include = table.get("context_include_keys")
    if isinstance(include, list):
        yield from _kept_away(doc, include, _sharing(doc, step, (*path, "branches")))


def _clashes(doc: DocumentIndex, step: StepNode, branches: dict[Any, Path]) -> Iterator[RuleFinding]:
    strategy = step.data.get("merge_strategy", "context_update")
    mapping = step.table("field_mapping")
    if strategy not in ("context_update", "error_on_conflict"):
        return
    first: dict[str, Any] = {}
    for name, path in branches.items():
        for each in _sharing(doc, step, path):
            for target in [str(each.data["sink_to"])] if "sink_to" in each.data else ():
                field, other = target.partition(".")[0], first.setdefault(target, name)
                if other != name and not (name in mapping and field not in mapping[name]):
                    message = f"branches '{shown(other)}' and '{shown(name)}' both write '{shown(target)}'; if they differ, {strategy} fails"
                    yield RuleFinding(
                        "V-P1",
                        (*each.path, "sink_to"),
                        message,
                        "write different fields, or choose which one wins: merge_strategy keep_first or overwrite",
                    )


def _kept_away(doc: DocumentIndex, include: list[Any], inside: Sequence[StepNode]) -> Iterator[RuleFinding]:
    own = {str(target).partition(".")[0] for each in inside for target in writes(doc, each)}
    for text in [text for each in inside for text in doc.texts_of(each)]:
        for names in sorted(text.names):
            read = names[1] if names[0] == "context" and len(names) > 1 else "step_outputs"
            if read not in ("step_outputs", *include) and not {read, "None"} & own:
                why = f"context_include_keys leaves '{shown(read)}' out"
                message = f"`context.{shown(read)}` has its default here: {why}"
                yield RuleFinding("V-P3", text.path, message, nearest=nearest(read, include))


def _of_import(doc: DocumentIndex, step: StepNode) -> Iterator[RuleFinding]:
    """Find an import that propagates no questions, with a question in it."""
    if step.table("config").get("propagate_hitl") is not False:
        return
    given = doc.table("imports").get(str(step.data["uses"]).partition(".")[2])
    if isinstance(given, dict) and (question := _question(given)) is not None:
        message = f"'{shown(question)}' in it asks a person, which propagate_hitl: false forbids, so it fails there"
        yield RuleFinding(
            "HITL-NESTED-001",
            (*step.path, "config", "propagate_hitl"),
            message,
            "remove propagate_hitl or the question",
            severity="warning",
        )


def _question(document: Any) -> str | None:
    """Return the name of the first step of a document that asks a person."""
    row = [document.get("steps")]
    while row:
        value = row.pop(0)
        kind = KINDS.get(str(value.get("kind"))) if isinstance(value, dict) else None
        if kind is not None and kind.asks_people:
            return str(value.get("name", value.get("step", "")))
        row += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return None


def _import_rules(doc: DocumentIndex) -> Iterator[RuleFinding]:
    """Check every import and every step that runs one."""
    used = {step.data["uses"].partition(".")[2] for step in doc.steps if step.spec is kinds.NESTED}
    for name in doc.table("imports"):
        if name not in used:
            yield RuleFinding("V-I4", (*doc.path, "imports", name), f"'{shown(name)}' is not run by any step")
    for step in doc.steps:
        if step.spec is kinds.NESTED:
            yield from _outputs(step)
            yield from _idle(step)


def _outputs(step: StepNode) -> Iterator[RuleFinding]:
    seen: set[str] = set()
    for path, parent in _targets(step):
        if parent in seen:
            yield RuleFinding(
                "V-I2", path, f"'{shown(parent)}' receives two outputs, and only the last one takes effect"
            )
        seen.add(parent)


def _targets(step: StepNode) -> Iterator[tuple[Path, str]]:
    outputs, path = step.table("config").get("outputs"), (*step.path, "config", "outputs")
    if isinstance(outputs, Mapping):
        yield from (((*path, key), each) for key, each in outputs.items() if isinstance(each, str))
    elif isinstance(outputs, list):
        for index, each in enumerate(outputs):
            if isinstance(each, Mapping) and isinstance(each.get("parent"), str):
                yield (*path, index, "parent"), each["parent"]


def _idle(step: StepNode) -> Iterator[RuleFinding]:
    config = step.table("config")
    if "default" in config and config.get("on_failure") != "continue_with_default":
        yield _no_effect(step, "default", "on_failure: continue_with_default")
    if "input_scratchpad_key" in config and config.get("input_to", "initial_prompt") == "initial_prompt":
        yield _no_effect(step, "input_scratchpad_key", "input_to: import_artifacts, or both")


def _no_effect(step: StepNode, key: str, needs: str) -> RuleFinding:
    return RuleFinding("V-I5", (*step.path, "config", key), "it has no effect here", f"it works only with {needs}")


_OF_KIND: Final[Mapping[KindSpec, Callable[[DocumentIndex, StepNode], Iterator[RuleFinding]]]] = {
    kinds.CONDITIONAL: _of_conditional,
    kinds.LOOP: _of_loop,
    kinds.MACHINE: of_machine,
    kinds.NESTED: _of_import,
    kinds.PARALLEL: _of_branches,
    kinds.ROUTER: _of_branches,
}
