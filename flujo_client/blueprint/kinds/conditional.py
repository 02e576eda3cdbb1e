"""Conditionals in blueprints."""

from __future__ import annotations

from typing import Any, Final

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.keys import MAPPER, function
from flujo_client.blueprint.kind import BODY, BlueprintKind, Data
from flujo_client.blueprint.shapes import Key, MapOf
from flujo_client.blueprint.value_types import EXPRESSION
from flujo_client.pipeline.compiled_text import Expressed
from flujo_client.pipeline.conditional import ConditionalStep, plain_key

_MAPPERS: Final = {"branch_input_mapper": "mapper", "branch_output_mapper": "mapper"}


def _build(build: Building, data: Data) -> ConditionalStep:
    expression, default = data.get("condition_expression"), data.get("default_branch")
    return ConditionalStep(
        condition_callable=build.load(data["condition"], "condition") if expression is None else Expressed(expression),
        branches=build.bodies(data["branches"]),
        default_branch_pipeline=None if default is None else build.body(default),
        **build.options(data, **_MAPPERS),
        **build.contained(data),
    )


def _write(writing: Writing, step: ConditionalStep) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if isinstance(step.condition_callable, Expressed):
        found["condition_expression"] = step.condition_callable.text
    else:
        found["condition"] = writing.named(step.condition_callable, "condition")
    found["branches"] = writing.bodies({plain_key(key): body for key, body in step.branches.items()})
    if step.default_branch_pipeline is not None:
        found["default_branch"] = writing.body(step.default_branch_pipeline)
    return found | writing.options(step, **_MAPPERS)


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
            BODY, "The branch that runs when no other matches; without it, the step fails.", runs="choice"
        ),
        "branch_input_mapper": Key(MAPPER, "`(input, context)`, returns the branch's input."),
        "branch_output_mapper": Key(MAPPER, "`(output, key, context)`, returns the output."),
    },
    one_of=(("name", "step"), ("condition", "condition_expression")),
    build=_build,
    write=_write,
)
