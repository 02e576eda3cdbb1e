"""V-A: agents. V-F1: fallbacks. V-S: JSON Schemas, of agents and of steps. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from flujo_client.blueprint.finding import Path, nearest, shown
from flujo_client.blueprint.rules.document_index import (
    Data,
    DocumentIndex,
    StepNode,
    agents_of,
    items_of,
    table_of,
    walk,
)
from flujo_client.blueprint.rules.outputs import is_background
from flujo_client.blueprint.rules.table import RuleFinding
from flujo_client.contract.providers import missing_for, misspelt_provider
from flujo_client.pipeline.agents import is_made_here
from flujo_client.plan.kinds import STEP

NO_PACKAGE: Final = "V-A9"
_MODEL: Final = re.compile(r"[\w.-]+:\S.*|test\Z")
_PROVIDERS: Final = {"gpt": "openai", "o1": "openai", "o3": "openai", "claude": "anthropic", "gemini": "google"}
_STORE: Final = frozenset({"sink_to", "updates_context", "plugins", "validators"})
"""Keys of a step by which its answer is stored, or judged."""
_MOST: Final = {
    "timeout": (86_400, "it is in seconds"),
    "timeout_s": (86_400, "it is in seconds"),
    "max_retries": (20, "each is a call to the model"),
    "temperature": (2, "models take 0 to 2"),
}


def rules(doc: DocumentIndex) -> Iterator[RuleFinding]:
    """Check every agent of a document, and every step that has one."""
    yield from _unused(doc)
    yield from _schema_rules(doc)
    for path, agent in agents_of(doc):
        yield from wrong_model(agent.get("model"), (*path, "model"))
        yield from _bounds(agent, path)
        yield from _bounds(agent.get("model_settings"), (*path, "model_settings"))
        yield from _tools(agent, path)
    for step in doc.steps:
        yield from _bounds(step.data.get("config"), (*step.path, "config"))
        yield from _duplicate_schema(doc, step)
        yield from _lost(doc, step)
        yield from _fallback(step)


def _unused(doc: DocumentIndex) -> Iterator[RuleFinding]:
    used = {text for _, text in walk(doc.document) if isinstance(text, str)}
    for name in doc.table("agents"):
        if f"agents.{name}" not in used:
            yield RuleFinding("V-A4", (*doc.path, "agents", name), f"'{shown(name)}' is not used by any step")


def wrong_model(model: Any, path: Path) -> Iterator[RuleFinding]:
    """Find what a model's name lacks: a provider, or the package that this environment needs for it."""
    if not isinstance(model, str) or not model.strip():
        return
    if not _MODEL.match(model):
        provider = next((each for begins, each in _PROVIDERS.items() if model.startswith(begins)), None)
        message = f"model '{shown(model)}' does not name a provider"
        near = f"{provider}:{shown(model)}" if provider else None
        yield RuleFinding("V-A6", path, message, "write provider:model, such as openai:gpt-5", near)
    elif not is_made_here(model) and (misspelt := misspelt_provider(model)):
        yield RuleFinding("V-A6", path, f"model {misspelt}")
    elif needed := missing_for(model):
        message = f"'{shown(model)}' needs the package '{needed.module}', which is not installed here"
        yield RuleFinding(NO_PACKAGE, path, message, f"where workers run: {needed.install}")


def _bounds(given: Any, path: Path) -> Iterator[RuleFinding]:
    for key, (most, meant) in _MOST.items():
        value = given.get(key) if isinstance(given, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and value > most:
            yield RuleFinding("V-A7", (*path, key), f"{value:g} is more than {most:,}; {meant}")


def _tools(agent: Data, path: Path) -> Iterator[RuleFinding]:
    tools = agent.get("tools")
    given = [str(each) for each in tools] if isinstance(tools, list) else []
    names = [each.rpartition(":")[2].rpartition(".")[2] for each in given]
    for name, count in Counter(names).items():
        if count > 1:
            last = len(names) - 1 - names[::-1].index(name)
            message = f"{count} tools are named '{shown(name)}'; a model tells tools apart by name"
            yield RuleFinding("V-A8", (*path, "tools", last), message)


def _duplicate_schema(doc: DocumentIndex, step: StepNode) -> Iterator[RuleFinding]:
    found = doc.agent(step) if step.spec is STEP else None
    if found is not None and "output_schema" in step.data and "output_schema" in found[1]:
        message = "its agent has an output_schema too, which has no effect here; keep one"
        yield RuleFinding("V-A3", (*step.path, "output_schema"), message)


def _lost(doc: DocumentIndex, step: StepNode) -> Iterator[RuleFinding]:
    """Find an answer that the next step leaves out, that is not stored, and that nothing reads by name."""
    before = step.before
    own = step.texts if "input" in step.data else ()
    if before is None or not own or before.spec is not STEP or doc.agent(before) is None or is_background(before):
        return
    if any(names[0] in ("previous_step", "this", "context") for text in own for names in text.names):
        return
    if _STORE & before.data.keys() or before.name in doc.read_by_name:
        return
    if any(each.table("loop").get("conversation") is True for each in step.line):
        return  # the conversation has it as a turn
    message = f"no step gets the answer of '{shown(before.name)}': the next step's `input` leaves it out"
    yield RuleFinding("V-A5", before.path, message, "read it as {{ previous_step }}, or store it with sink_to")


def _fallback(step: StepNode) -> Iterator[RuleFinding]:
    other = step.data.get("fallback")
    if step.spec is not STEP or not isinstance(other, dict) or other.get("kind", STEP.yaml_name) != STEP.yaml_name:
        return
    same = ("uses", "agent", "input", "output_schema", "processing", "plugins", "validators")
    if all(step.data.get(key) == other.get(key) for key in same) and _tries(step.data) == _tries(dict(other)):
        message = f"it repeats what has just failed, the same agent with the same input; `config.max_retries` tries '{shown(step.name)}' again"
        yield RuleFinding("V-F1", (*step.path, "fallback"), message)


def _tries(step: Data) -> Any:
    return {key: each for key, each in table_of(step, "config").items() if key != "max_retries"}


_PAIRS: Final = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
)
_PARTS: Final = (
    ("array", ("items", "prefixItems"), "items of the list"),
    ("object", ("properties", "additionalProperties"), "properties of the object"),
)
_ELSEWHERE: Final = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "if", "const", "enum", "dependentSchemas")
_HOLD_SCHEMAS: Final = ("properties", "patternProperties", "$defs", "definitions")
_LIST_SCHEMAS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_ARE_SCHEMAS: Final = ("items", "additionalProperties", "contains", "not", "if", "then", "else")


def _schema_rules(doc: DocumentIndex) -> Iterator[RuleFinding]:
    for path, schema, is_for_model in _schemas(doc):
        yield from _impossible(schema, path)
        if is_for_model:
            yield from _little(schema, path)


def _schemas(doc: DocumentIndex) -> Iterator[tuple[Path, Data, bool]]:
    given: list[tuple[Path, Any, bool]] = []
    for name, agent in doc.table("agents").items():
        if isinstance(agent, Mapping):
            given.append(((*doc.path, "agents", name, "output_schema"), agent.get("output_schema"), True))
    for step in doc.steps:
        given += [((*step.path, key), step.data.get(key), False) for key in ("input_schema", "output_schema")]
        agent = step.data.get("agent")
        if isinstance(agent, Mapping):
            given.append(((*step.path, "agent", "output_schema"), agent.get("output_schema"), True))
    for path, schema, is_for_model in given:
        if isinstance(schema, Mapping):
            yield from ((inner_path, inner, is_for_model) for inner_path, inner in _inside(schema, path))


def _inside(schema: Data, path: Path) -> Iterator[tuple[Path, Data]]:
    yield path, schema
    for key, value in schema.items():
        if key in _ARE_SCHEMAS and isinstance(value, Mapping):
            yield from _inside(value, (*path, key))
        elif key in (*_ARE_SCHEMAS, *_LIST_SCHEMAS, *_HOLD_SCHEMAS):
            for name, each in items_of(value):
                if isinstance(each, Mapping):
                    yield from _inside(each, (*path, key, name))


def _impossible(schema: Data, path: Path) -> Iterator[RuleFinding]:
    for least, most in _PAIRS:
        low, high = schema.get(least), schema.get(most)
        if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
            yield RuleFinding("V-S2", (*path, least), f"no value fits: {least} {low:g} is above {most} {high:g}")
    if schema.get("enum") == []:
        yield RuleFinding("V-S2", (*path, "enum"), "no value fits: enum is empty")
    if schema.get("additionalProperties") is False and not any(key in schema for key in _ELSEWHERE):
        for name, near in _undescribed(schema):
            message = f"no value fits: '{shown(name)}' is required but not among the properties, and additionalProperties is false"
            yield RuleFinding("V-S2", (*path, "required"), message, nearest=near)


def _little(schema: Data, path: Path) -> Iterator[RuleFinding]:
    if any(key in schema for key in _ELSEWHERE):
        return
    for kind, keys, what in _PARTS:
        if schema.get("type") == kind and not set(keys) & schema.keys():
            message = f"the schema does not describe the {what}"
            yield RuleFinding("V-S3", path, message, f"describe it with `{keys[0]}`")
    if schema.get("additionalProperties") is not False and "properties" in schema:
        for name, near in _undescribed(schema):
            message = f"'{shown(name)}' is required but not among the properties"
            yield RuleFinding("V-S3", (*path, "required"), message, nearest=near)


def _undescribed(schema: Data) -> Iterator[tuple[str, str | None]]:
    """Yield the required keys that are not among the properties, each with the nearest one that is."""
    required, known = schema.get("required"), table_of(schema, "properties")
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str) and name not in known:
            yield name, nearest(name, known)
