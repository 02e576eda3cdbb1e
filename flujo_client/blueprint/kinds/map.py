"""Maps in blueprints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.changes import CHANGES_KEYS, ItemsShape, context_path
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.keys import MAPPER
from flujo_client.blueprint.kind import BODY, BlueprintKind, Data
from flujo_client.blueprint.kinds.parallel import FAN_OUT, FAN_OUT_FUNCTIONS, FAN_OUT_OPTIONS
from flujo_client.blueprint.shapes import FLAG, AnyOf, Key, Table
from flujo_client.blueprint.value_types import TEMPLATE, Templates
from flujo_client.pipeline.compiled_text import Templated
from flujo_client.pipeline.map import MapStep

_FINALIZE: Final = Table(
    {
        "output": Key(Templates(), "A template, or a mapping of them."),
        "output_template": Key(TEMPLATE, "The output as a template."),
        "output_mapper": Key(MAPPER, "`(outputs, context)`, returns the output."),
    },
    "finalize",
    one_of=(("output", "output_template", "output_mapper"),),
)
MAP: Final = Table(
    {
        "iterable_input": Key(ItemsShape(), "The path of the items.", required=True),
        "body": Key(BODY, "The steps that run for each item.", required=True, runs="again"),
        "parallel": Key(FLAG, "Run the items in parallel."),
        **FAN_OUT,
        "init": Key(CHANGES_KEYS, "Changes of the context before the items are read."),
        "finalize": Key(
            AnyOf((_FINALIZE, TEMPLATE)), "The map's output, made from the list of the items' outputs.", after=True
        ),
    },
    "a map",
)
_OPTIONS: Final = ("parallel", *FAN_OUT_OPTIONS)


def _build(build: Building, data: Data) -> MapStep:
    given: Data = data["map"]
    return MapStep(
        pipeline_to_run=build.body(given["body"]),
        iterable_input=str(context_path(given["iterable_input"])),
        finalize=_final(build, given.get("finalize")),
        **build.options(given, *_OPTIONS, **FAN_OUT_FUNCTIONS),
        **build.contained(data),
    )


def _final(build: Building, given: Any) -> Callable[..., Any] | None:
    if isinstance(given, Mapping) and "output_mapper" in given:
        return cast("Callable[..., Any]", build.load(given["output_mapper"], "mapper"))
    output = given.get("output", given.get("output_template")) if isinstance(given, Mapping) else given
    return None if output is None else Templated(output)


def _write(writing: Writing, step: MapStep) -> dict[str, Any]:
    own = {"iterable_input": step.iterable_input, **writing.options(step, *_OPTIONS, **FAN_OUT_FUNCTIONS)}
    if isinstance(step.finalize, Templated):
        own["finalize"] = {"output": step.finalize.value}
    elif step.finalize is not None:
        own["finalize"] = {"output_mapper": writing.named(step.finalize, "mapper")}
    return {"map": {**own, "body": writing.body(step.pipeline_to_run)}}


KIND: Final = BlueprintKind(
    step=MapStep,
    keys={"map": Key(MAP, "The map.", required=True)},
    own_table="map",
    has_item=True,
    build=_build,
    write=_write,
)
