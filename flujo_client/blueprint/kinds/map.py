"""Maps in blueprints."""

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.changes import CHANGES_KEYS, ItemsShape, context_path
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.keys import MAPPER
from flujo_client.blueprint.kind import BODY, BlueprintKind, Data
from flujo_client.blueprint.kinds.parallel import FAN_OUT
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
        "body": Key(BODY, "The steps that run for each item.", field="pipeline_to_run", required=True, runs="again"),
        "parallel": Key(FLAG, "Run the items in parallel."),
        **FAN_OUT,
        "init": Key(CHANGES_KEYS, "Changes of the context before the items are read."),
        "finalize": Key(
            AnyOf((_FINALIZE, TEMPLATE)), "The map's output, made from the list of the items' outputs.", after=True
        ),
    },
    "a map",
)


def _build(build: Building, data: Data) -> dict[str, Any]:
    given, path = data["map"].get("finalize"), context_path(data["map"]["iterable_input"])
    return {"iterable_input": path, "finalize": _final(build, given)}


def _final(build: Building, given: Any) -> Callable[..., Any] | None:
    if isinstance(given, Mapping) and "output_mapper" in given:
        return cast("Callable[..., Any]", build.load(given["output_mapper"], "mapper"))
    output = given.get("output", given.get("output_template")) if isinstance(given, Mapping) else given
    return None if output is None else Templated(output)


def _write(writing: Writing, step: MapStep) -> dict[str, Any]:
    final = step.finalize
    if isinstance(final, Templated):
        return {"finalize": {"output": final.value}}
    return {} if final is None else {"finalize": {"output_mapper": writing.named(final, "mapper")}}


KIND: Final = BlueprintKind(
    step=MapStep,
    keys={"map": Key(MAP, "The map.", required=True)},
    own_table="map",
    has_item=True,
    build=_build,
    write=_write,
)
