"""Find the schema of a step's output, and the parts of the context that it changes, as far as they are known before a run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from flujo_client.blueprint.changes import STATE, field_path
from flujo_client.blueprint.finding import Path
from flujo_client.blueprint.kind import INIT
from flujo_client.blueprint.rules.document_index import Data, DocumentIndex, StepNode, reach
from flujo_client.plan import kinds

TEXT: Final[Data] = {"type": "string"}


def schema_of(doc: DocumentIndex, step: StepNode) -> Data | None:
    """Return the JSON Schema that a step's output surely fits, if one is known."""
    if step.spec is kinds.HUMAN:
        return _schema(step.data.get("input_schema"))
    if step.spec is kinds.CACHE:
        wrapped = next(iter(doc.within((*step.path, "wrapped_step"))), None)
        return None if wrapped is None else schema_of(doc, wrapped)
    return _answer_schema(doc, step) if step.spec is kinds.STEP else None


def _answer_schema(doc: DocumentIndex, step: StepNode) -> Data | None:
    if _REPLACE & step.data.keys() or is_background(step):
        return None
    own = step.data.get("output_schema")
    found = doc.agent(step)
    if own is not None or found is None:
        return _schema(own)
    agent = found[1]
    if "processing" in step.data or "processing" in agent:
        return _schema(agent.get("output_schema"))
    return _schema(agent["output_schema"]) if "output_schema" in agent else TEXT


_REPLACE: Final = frozenset({"output_processors", "plugins", "fallback"})
"""Keys of a step by which its output may be something else than its agent's answer."""


def is_background(step: StepNode) -> bool:
    """Return whether the pipeline continues without a step's output, with its input."""
    return step.table("config").get("execution_mode") == "background"


def properties(schema: Data | None) -> Data | None:
    """Return the properties of what a schema describes, if it describes an object and each of them."""
    if schema is None or schema.get("type") != "object" or any(key in schema for key in _OPEN):
        return None
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else None


_OPEN: Final = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "if", "dependentSchemas")


def writes(doc: DocumentIndex, step: StepNode) -> Iterator[str | None]:
    """Return the dotted paths of the context that a step itself writes; None where it may write any."""
    if "sink_to" in step.data:
        yield str(step.data["sink_to"])
    if step.data.get("updates_context") is True:
        known = properties(schema_of(doc, step))
        yield from [None] if known is None else map(str, known)
    yield from (str(target) for _, target in changed(step))
    if step.spec in _WRITES:
        yield from _WRITES[step.spec](doc, step)


def _of_import(_: DocumentIndex, step: StepNode) -> Iterator[str | None]:
    outputs = step.table("config").get("outputs")
    if isinstance(outputs, Mapping):
        yield from map(str, outputs.values())
    elif isinstance(outputs, list):
        yield from (str(each.get("parent")) for each in outputs if isinstance(each, Mapping))
    else:
        yield None


_WRITES: Final[Mapping[kinds.KindSpec, Callable[[DocumentIndex, StepNode], Iterable[str | None]]]] = {
    kinds.AGENTIC_LOOP: lambda *_: ("command_log", None),  # its agents may be functions
    kinds.MACHINE: lambda *_: ("current_state", "next_state"),
    kinds.NESTED: _of_import,
    kinds.STEP: lambda doc, step: () if doc.agent(step) else (None,),  # a function may change the context it is given
}


def changed(step: StepNode) -> Iterator[tuple[Path, Any]]:
    """Return the targets of the context changes that a loop or a map makes, with their places."""
    own_table = None if step.kind is None else step.kind.init_table
    for table in (INIT, STATE) if own_table is not None else ():
        for path, target in reach(step.data, (str(own_table), table, "*", "*", "target"), step.path):
            yield path, field_path(str(target))


def _schema(given: Any) -> Data | None:
    return given if isinstance(given, Mapping) else None
