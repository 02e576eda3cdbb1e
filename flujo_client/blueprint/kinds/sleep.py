"""Sleeps in blueprints."""

from datetime import datetime
from typing import Any, Final

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.kind import BlueprintKind, Data, present
from flujo_client.blueprint.shapes import AnyOf, Key, Number
from flujo_client.blueprint.value_types import TEMPLATE
from flujo_client.pipeline.compiled_text import Templated
from flujo_client.pipeline.sleep import Sleep


def _build(_: Building, data: Data) -> dict[str, Any]:
    [(name, given)] = present(data, "seconds", "until").items()
    return {name: Templated(given) if isinstance(given, str) and "{{" in given else given}


def _write(writing: Writing, step: Sleep) -> dict[str, Any]:
    name, given = step.given
    if isinstance(given, Templated):
        return {name: given.value}
    if callable(given):
        writing.cannot(f"its {name} is a function, and a blueprint can only hold templates")
    return {name: given.isoformat() if isinstance(given, datetime) else given}


KIND: Final = BlueprintKind(
    step=Sleep,
    keys={
        "seconds": Key(AnyOf((Number(least=0), TEMPLATE)), "How many seconds the run sleeps, or a template of them."),
        "until": Key(TEMPLATE, "Until when: an ISO 8601 time with its zone, or a template of one."),
    },
    one_of=(("name", "step"), ("seconds", "until")),
    build=_build,
    write=_write,
)
