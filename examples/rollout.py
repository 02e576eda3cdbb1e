"""The same step on its way: watched, then repaired a little, then more, each time because of what was seen."""

from collections.abc import Iterable

from flujo_client import Pipeline, Step
from flujo_client.contract.records import EventRecord
from flujo_worker.agents import make_agent_async
from flujo_worker.agents.scripted import scripted_model

PARCEL = {
    "type": "object",
    "required": ["weight", "to"],
    "properties": {"weight": {"type": "number"}, "to": {"type": "string"}},
}

WATCHED = {"schema": PARCEL, "aop": "full", "shadow": True}
MINIMAL = {"schema": PARCEL, "aop": "minimal"}
FULL = {
    "schema": PARCEL,
    "aop": "full",
    "coercion": {"tolerant_level": 1, "allow": {"number": ["str->float", "str->int"]}},
}

weigher = make_agent_async(scripted_model(lambda prompt: prompt, name="echo"), name="weigher")

watched = Pipeline([Step("weigh", weigher, processing=WATCHED)])
minimal = Pipeline([Step("weigh", weigher, processing=MINIMAL)])
full = Pipeline([Step("weigh", weigher, processing=FULL)])


def refused(events: Iterable[EventRecord]) -> list[tuple[str, str, bool]]:
    told = [event.data for event in events if event.name == "output.coercion.fail"]
    return [(data["rule"], data["pointer"], data.get("next_level", {}).get("ok", False)) for data in told]
