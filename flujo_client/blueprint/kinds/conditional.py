"""Conditionals in blueprints."""

from typing import Any, Final

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.keys import MAPPER, function
from flujo_client.blueprint.kind import BODY, BlueprintKind, Data
from flujo_client.blueprint.shapes import Key, MapOf
from flujo_client.blueprint.value_types import EXPRESSION
from flujo_client.pipeline.compiled_text import Expressed
from flujo_client.pipeline.conditional import ConditionalStep


def _build(build: Building, data: Data) -> dict[str, Any]:
    expression = data.get("condition_expression")
    loaded = Expressed(expression) if expression is not None else build.load(data["condition"], "condition")
    return {"condition_callable": loaded}


def _write(writing: Writing, step: ConditionalStep) -> dict[str, Any]:
    condition = step.condition_callable
    if isinstance(condition, Expressed):
        return {"condition_expression": condition.text}
    return {"condition": writing.named(condition, "condition")}


KIND: Final = BlueprintKind(
    step=ConditionalStep,
    keys={
        "condition": Key(function("condition"), "`(output, context) -> key`."),
        "condition_expression": Key(EXPRESSION, "The condition as an expression."),
        "branches": Key(
            MapOf(BODY, "branch"),
            "The branches, by a text, true, false or a whole number.",
            required=True,
            runs="choice",
        ),
        "default_branch": Key(
            BODY,
            "The branch that runs when no other matches; without it, the step fails.",
            field="default_branch_pipeline",
            runs="choice",
        ),
        "branch_input_mapper": Key(MAPPER, "`(input, context)`, returns the branch's input."),
        "branch_output_mapper": Key(MAPPER, "`(output, key, context)`, returns the output."),
    },
    one_of=(("name", "step"), ("condition", "condition_expression")),
    build=_build,
    write=_write,
)
