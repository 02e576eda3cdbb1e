"""Waits for events in blueprints."""

from __future__ import annotations

from typing import Any, Final

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.kind import BlueprintKind, Data, present
from flujo_client.blueprint.shapes import ANY, TEXT, AnyOf, Key, Number, OneOf
from flujo_client.blueprint.value_types import JsonSchema, Reference
from flujo_client.pipeline.event import ON_TIMEOUT, WaitForEvent
from flujo_client.pipeline.step import Step
from flujo_client.plan import kinds

VALUE: Final = "type of events"
"""Its name in error messages."""
_OPTIONS: Final = ("event", "sink_to", "timeout_s", "on_timeout", "default")


def _build(build: Building, data: Data) -> Step:
    options = present(data, "input_schema", *_OPTIONS)
    if isinstance(options.get("input_schema"), str):
        options["input_schema"] = build.load(options["input_schema"], VALUE)
    return WaitForEvent(**options, **build.contained(data))


def _write(writing: Writing, step: WaitForEvent) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if (given := step.input_schema) is not None:
        found["input_schema"] = dict(given) if hasattr(given, "items") else writing.named(given, VALUE)
    return found | writing.options(step, *_OPTIONS)


KIND: Final = BlueprintKind(
    spec=kinds.EVENT,
    step=WaitForEvent,
    keys={
        "event": Key(TEXT, "The event's name; the step's own by default."),
        "input_schema": Key(
            AnyOf((JsonSchema(), Reference(VALUE))), "The schema of the event's value, or the reference of a type."
        ),
        "sink_to": Key(TEXT, "A dotted path in the context that receives the value."),
        "timeout_s": Key(Number(above=0), "Seconds after which the step waits no longer; never by default."),
        "on_timeout": Key(OneOf(ON_TIMEOUT), "What happens then; `fail` by default."),
        "default": Key(ANY, "The value if `on_timeout` is `default`."),
    },
    build=_build,
    write=_write,
)
