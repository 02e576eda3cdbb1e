"""Waits for events in blueprints."""

from typing import Final

from flujo_client.blueprint.kind import BlueprintKind
from flujo_client.blueprint.shapes import ANY, TEXT, AnyOf, Key, Number, OneOf
from flujo_client.blueprint.value_types import JsonSchema, Reference
from flujo_client.pipeline.event import ON_TIMEOUT, WaitForEvent

VALUE: Final = "type of events"
"""Its name in error messages."""

KIND: Final = BlueprintKind(
    step=WaitForEvent,
    keys={
        "event": Key(TEXT, "The event's name; the step's own by default."),
        "input_schema": Key(
            AnyOf((JsonSchema(), Reference(VALUE))), "The schema of the event's value, or the reference of a type."
        ),
        "sink_to": Key(TEXT, "A dotted path in the context that receives the value."),
        "timeout_s": Key(Number(above=0), "Seconds after which the wait ends; never by default."),
        "on_timeout": Key(OneOf(ON_TIMEOUT), "What happens then; `fail` by default."),
        "default": Key(ANY, "The value if `on_timeout` is `default`."),
    },
)
