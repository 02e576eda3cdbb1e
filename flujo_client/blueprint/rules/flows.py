"""V-L, V-CF, V-P, V-SM, V-I, HITL-NESTED: where a run goes, and where it cannot; imports, and the steps that run them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from flujo_client.blueprint.finding import Path, meant, nearest, shown
from flujo_client.blueprint.kind import KINDS
from flujo_client.blueprint.rules.document_index import DocumentIndex, StepNode, TextNode, walk
from flujo_client.blueprint.rules.outputs import properties, schema_of, writes
from flujo_client.blueprint.rules.table import RuleFinding
from flujo_client.errors import BlueprintTextError, FlujoError
from flujo_client.expressions.nodes import Comparison, Not
from flujo_client.pipeline.compiled_text import expression_of
from flujo_client.plan import kinds

NO_ANSWER: Final = object()


def rules(doc: DocumentIndex) -> Iterator[RuleFinding]:
    """Check every container, and every import."""
    for step in doc.steps:
        if step.spec in _OF_KIND:
            yield from _OF_KIND[step.spec](doc, step)
    yield from _import_rules(doc)


def _of_loop(doc: DocumentIndex, step: StepNode) -> Iterator[RuleFinding]:
    text = next((each for each in step.texts if each.path[-1] == "exit_expression"), None)
    if step.table("loop").get("stop_when") == "agent_finished":
        yield from _finishes(doc, step)
    if text is None:
        return
    constant = _constant(text)
    if constant is not NO_ANSWER:
        so = "the loop ends after one iteration" if constant else "only max_loops ends the loop"
        yield RuleFinding("V-L1", text.path, f"it reads nothing, so its answer is always the same: {so}")
    elif text.names and all(names[0] == "context" and len(names) > 1 for names in text.names):
        yield from _changes(doc, step, text)


def _changes(doc: DocumentIndex, step: StepNode, text: TextNode) -> Iterator[RuleFinding]:
    read = {names[1] for names in text.names}
    inside = _sharing(doc, step, (*step.path, "loop", "body"))
    written = [path for each in (step, *inside) for path in writes(doc, each)]
    if None in written or read & {*_BY_ENGINE, *(str(path).partition(".")[0] for path in written)}:
        return
    if any(each.spec is kinds.PARALLEL and each.data.get("ignore_branch_names") is not True for each in inside):
        return  # fields of the branches' names receive their outputs
    message = f"nothing in its body writes {', '.join(f'context.{shown(each)}' for each in sorted(read))}, so only max_loops ends the loop"
    yield RuleFinding("V-L1", text.path, message, "write it with sink_to, updates_context or the loop's `state`")


_BY_ENGINE: Final = ("step_outputs", "hitl_history", "conversation_history", "call_count", "status", "import_artifacts")


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
        allowed = "agent_finished needs an output whose action or type is `finish`"
        yield RuleFinding("V-L1", (*step.path, "loop", "stop_when"), message, allowed)


def _sharing(doc: DocumentIndex, container: StepNode, path: Path) -> list[StepNode]:
    """List the steps at a path in a container that run in its context, not in that of a tree search in it."""
    return [each for each in doc.within(path) if each.search is container.search]


def _constant(text: TextNode) -> Any:
    if text.names:
        return NO_ANSWER
    try:
        return bool(expression_of(text.text).evaluate({}))
    except FlujoError:  # it cannot be read, which is reported; or it fails in every run alike, and the run reports it
        return NO_ANSWER


def _of_conditional(doc: DocumentIndex, step: StepNode) -> Iterator[RuleFinding]:
    text = next(iter(step.texts), None)
    answers = None if text is None else _answers(doc, step, text)
    if text is None or answers is None:
        return
    branches = step.table("branches")
    keys = {(type(key), key) for key in branches}
    chosen = {each for answer in answers for each in _chosen_by(answer)}
    for key in branches:
        if (type(key), key) not in chosen:
            message, path = f"the condition never returns {shown(key)}", (*step.path, "branches", key)
            yield RuleFinding("V-CF1", path, message, *meant(key, answers, "it returns"))
    if "default_branch" in step.data:
        return
    for answer in answers:
        if not _chosen_by(answer) & keys:
            message = f"the condition may return {shown(answer)}, which fails the step: it has no such branch and no default_branch"
            yield RuleFinding("V-CF1", (*step.path, "branches"), message)


def _answers(doc: DocumentIndex, step: StepNode, text: TextNode) -> list[Any] | None:
    try:
        node = expression_of(text.text).node
    except BlueprintTextError:
        return None
    if isinstance(node, Comparison | Not):
        return [True, False]
    before = step.before
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


def _chosen_by(answer: Any) -> set[tuple[type, Any]]:
    """Return the keys that an answer means, as a run looks for the branch: true and false mean the texts too."""
    return {(type(answer), answer)} | ({(str, str(answer).lower())} if isinstance(answer, bool) else set())


def _of_branches(doc: DocumentIndex, step: StepNode) -> Iterator[RuleFinding]:
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
            if "sink_to" not in each.data:
                continue
            target = str(each.data["sink_to"])
            field, other = target.partition(".")[0], first.setdefault(target, name)
            if other != name and not (name in mapping and field not in mapping[name]):
                message = f"branches '{shown(other)}' and '{shown(name)}' both write '{shown(target)}'; if they differ, {strategy} fails"
                allowed = "write different fields, or choose which one wins: merge_strategy keep_first or overwrite"
                yield RuleFinding("V-P1", (*each.path, "sink_to"), message, allowed)


def _kept_away(doc: DocumentIndex, include: list[Any], inside: Sequence[StepNode]) -> Iterator[RuleFinding]:
    own = {str(target).partition(".")[0] for each in inside for target in writes(doc, each)}
    for text in [text for each in inside for text in each.texts]:
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
        path, allowed = (*step.path, "config", "propagate_hitl"), "remove propagate_hitl or the question"
        yield RuleFinding("HITL-NESTED-001", path, message, allowed, severity="warning")


def _question(document: Any) -> str | None:
    for _, value in walk(document.get("steps")):
        kind = KINDS.get(str(value.get("kind"))) if isinstance(value, dict) else None
        if kind is not None and kind.asks_people:
            return str(value.get("name", value.get("step", "")))
    return None


def _import_rules(doc: DocumentIndex) -> Iterator[RuleFinding]:
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
            message = f"'{shown(parent)}' receives two outputs, and only the last one takes effect"
            yield RuleFinding("V-I2", path, message)
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


def _of_machine(_: DocumentIndex, step: StepNode) -> Iterator[RuleFinding]:
    states = dict.fromkeys(map(str, step.table("states")))
    ends = dict.fromkeys(each for each in step.listed("end_states") if isinstance(each, str))
    start = step.data.get("start_state")
    leads = list(_transitions(step))
    for index, (source, _on, target) in enumerate(leads):
        for key, name, more in (("from", source, {"*": None}), ("to", target, ends)):
            yield from _unknown_state(name, more if name in more else states, (*step.path, "transitions", index, key))
    if isinstance(start, str):
        yield from _unknown_state(start, states, (*step.path, "start_state"))
    if (
        not isinstance(start, str)
        or start not in states
        or any(target not in states and target not in ends for _, _, target in leads)
    ):
        return
    onward = {source for source, on, _ in leads if on != "failure"}
    reached = _reached(start, leads, ends)
    for name in states:
        if name not in reached:
            message = f"no transition leads to '{shown(name)}'"
            yield RuleFinding("V-SM1", (*step.path, "states", name), message, severity="warning")
        elif name not in ends and not {name, "*"} & onward:
            message = f"nothing leads on from '{shown(name)}' when it has succeeded, and it is not an end state"
            yield RuleFinding("V-SM1", (*step.path, "states", name), message, severity="warning")
    if ends and not reached & set(ends):
        yield RuleFinding("V-SM1", (*step.path, "end_states"), "no transition leads to any of them", severity="warning")


def _transitions(step: StepNode) -> Iterator[tuple[str, str, str]]:
    for each in step.listed("transitions"):
        given = each if isinstance(each, dict) else {}
        yield str(given.get("from")), str(given.get("on", "success")), str(given.get("to"))


def _reached(start: str, leads: list[tuple[str, str, str]], ends: Collection[str]) -> set[str]:
    onward: dict[str, set[str]] = {}
    for source, _, target in leads:
        onward.setdefault(source, set()).add(target)
    found, row = {start}, [start]
    anywhere = onward.pop("*", set())
    while row:
        name = row.pop()
        following = set() if name in ends else onward.pop(name, set()) | anywhere
        anywhere = set() if name not in ends else anywhere
        row += following - found
        found |= following
    return found


def _unknown_state(name: str, known: Collection[str], path: Path) -> Iterator[RuleFinding]:
    if name not in known:
        yield RuleFinding("V-SM1", path, f"'{shown(name)}' is not a state", *meant(name, known, "there are"))


_OF_KIND: Final[Mapping[kinds.KindSpec, Callable[[DocumentIndex, StepNode], Iterator[RuleFinding]]]] = {
    kinds.CONDITIONAL: _of_conditional,
    kinds.LOOP: _of_loop,
    kinds.MACHINE: _of_machine,
    kinds.NESTED: _of_import,
    kinds.PARALLEL: _of_branches,
    kinds.ROUTER: _of_branches,
}
