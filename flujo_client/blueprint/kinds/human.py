"""Questions to people in blueprints."""

from typing import Any, Final

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.kind import BlueprintKind, Data
from flujo_client.blueprint.shapes import ANY, TEXT, AnyOf, Key, Number, OneOf
from flujo_client.blueprint.value_types import TEMPLATE, JsonSchema, Reference
from flujo_client.pipeline.compiled_text import Templated
from flujo_client.pipeline.human import ON_EXPIRY, HumanInTheLoopStep

ANSWER: Final = "type of answers"
"""Its name in error messages."""


def _build(_: Building, data: Data) -> dict[str, Any]:
    message: Any = data.get("message")
    return {"message_for_user": Templated(message, as_text=True) if message and "{{" in message else message}


def _write(writing: Writing, step: HumanInTheLoopStep) -> dict[str, Any]:
    message = step.message_for_user
    if isinstance(message, Templated):
        return {"message": message.value}
    if callable(message) or (isinstance(message, str) and "{{" in message):
        writing.cannot("its message is a function or contains {{, and a blueprint can only hold templates")
    return {} if message is None else {"message": message}


KIND: Final = BlueprintKind(
    step=HumanInTheLoopStep,
    keys={
        "message": Key(TEMPLATE, "The question."),
        "input_schema": Key(
            AnyOf((JsonSchema(), Reference(ANSWER))), "The schema of answers, or the reference of a type."
        ),
        "sink_to": Key(TEXT, "A dotted path in the context that receives the answer."),
        "expires_s": Key(Number(above=0), "Seconds after which the question expires; never by default."),
        "on_expiry": Key(OneOf(ON_EXPIRY), "What happens when it expires; `fail` by default."),
        "default": Key(ANY, "The answer if `on_expiry` is `default`."),
        "escalate_to": Key(TEXT, "The person that the second question of `escalate` is for."),
    },
    asks_people=True,
    build=_build,
    write=_write,
)
