"""State machines in blueprints."""

from typing import Any, Final

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.keys import WhenShape
from flujo_client.blueprint.kind import BODY, BlueprintKind, Data
from flujo_client.blueprint.shapes import COUNT, TEXT, Key, ListOf, MapOf, OneOf, Table
from flujo_client.pipeline.compiled_text import Expressed
from flujo_client.pipeline.machine import ENDINGS, StateMachineStep, Transition
from flujo_client.pipeline.reference import is_reference

_TRANSITION: Final = Table(
    {
        "from": Key(TEXT, "The state that ended, or `*` for any.", required=True),
        "on": Key(OneOf(ENDINGS), "How it ended; `success` by default."),
        "to": Key(TEXT, "The state that comes next.", required=True),
        "when": Key(
            WhenShape(), "An expression, or a reference to `(output, context) -> bool`; always by default.", after=True
        ),
    },
    "a transition",
)


def _build(build: Building, data: Data) -> dict[str, Any]:
    return {"transitions": [_build_transition(build, each) for each in data.get("transitions", ())]}


def _build_transition(build: Building, data: Data) -> Transition:
    when = data.get("when")
    condition = None if when is None else build.load(when, "condition") if is_reference(when) else Expressed(when)
    return Transition(data["from"], data["to"], data.get("on", "success"), condition)


def _write(writing: Writing, step: StateMachineStep) -> dict[str, Any]:
    transitions = [{key: each[key] for key in ("from", "on", "to")} for each in step.rules()["transitions"]]
    for index, when in step.functions().get("when", {}).items():
        transitions[index]["when"] = when.text if isinstance(when, Expressed) else writing.named(when, "condition")
    return {"transitions": transitions}


KIND: Final = BlueprintKind(
    step=StateMachineStep,
    keys={
        "states": Key(MapOf(BODY, "state"), "The steps of each state.", required=True, runs="state"),
        "start_state": Key(TEXT, "The first state.", required=True),
        "end_states": Key(ListOf(TEXT), "The states that end the machine.", required=True),
        "transitions": Key(ListOf(_TRANSITION), "The transitions from state to state, in the order they are tried."),
        "max_visits": Key(COUNT, "The most states visited; 100 by default."),
    },
    build=_build,
    write=_write,
)
