"""A plain step in blueprints."""

from dataclasses import replace
from typing import Any, Final

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.keys import ANY_AGENT, PYTHON_AGENT, WORK
from flujo_client.blueprint.kind import BlueprintKind, Data
from flujo_client.blueprint.shapes import FLAG, TEXT, Key
from flujo_client.blueprint.value_types import JsonSchema, Named
from flujo_client.pipeline.agents import DeclaredAgent
from flujo_client.pipeline.compiled_text import Changes, Fits
from flujo_client.pipeline.step import Step


def _build(build: Building, data: Data) -> dict[str, Any]:
    given = data.get("uses", data.get("agent"))
    agent = build.agent(given, build.name(data))
    options = build.working(data, build.entry(given))
    schema = data.get("output_schema")
    if schema is not None and isinstance(agent, DeclaredAgent):
        agent = replace(agent, output_schema=schema)
    elif schema is not None:
        options["validators"] = [*options["validators"], Fits(schema)]
    return {"agent": agent, **options}


def _write(writing: Writing, step: Step) -> dict[str, Any]:
    if isinstance(step.agent, Changes):
        writing.cannot("it changes the context as a loop's `init` and `state` do, but is not in a loop")
    return {"uses": writing.agent(step.agent)}


KIND: Final = BlueprintKind(
    step=Step,
    keys={
        "agent": Key(
            ANY_AGENT,
            "The agent that does the work: `agents.<name>`, `package.module:attribute`, or an agent's own keys.",
        ),
        "uses": Key(
            Named(("agents", "imports"), PYTHON_AGENT),
            "The agent by name; `imports.<name>` runs an imported blueprint.",
        ),
        **WORK,
        "updates_context": Key(FLAG, "Merge the output, a mapping, into the context."),
        "sink_to": Key(TEXT, "A dotted path in the context that receives the output."),
        "output_schema": Key(JsonSchema(), "The schema of the output; it replaces that of an agent of this document."),
        "validate_fields": Key(FLAG, "Reject output for fields that the context's model does not declare."),
        "strict_validation": Key(
            FLAG,
            "With `false`, the step succeeds even if a validator rejects its output; the result's metadata say so.",
        ),
    },
    one_of=(("name", "step"), ("uses", "agent")),
    build=_build,
    write=_write,
)
