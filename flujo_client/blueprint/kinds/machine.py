"""State machines in blueprints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flujo_client.blueprint.keys import WhenShape
from flujo_client.blueprint.kind import BODY, BlueprintKind, present
from flujo_client.blueprint.rules import machines
from flujo_client.blueprint.shapes import TEXT, Key, ListOf, MapOf, Number, OneOf, Table
from flujo_client.pipeline.compiled_text import Expressed
from flujo_client.pipeline.machine import ENDINGS, StateMachineStep, Transition
from flujo_client.pipeline.reference import is_reference
from flujo_client.plan import kinds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flujo_client.blueprint.build import Building
    from flujo_client.blueprint.document import Writing
    from flujo_client.blueprint.kind import Data
    from flujo_client.pipeline.step import Step

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


def _build(build: Building, data: Data) -> Step:
    return StateMachineStep(
        states=build.bodies(data["states"]),
        transitions=[_build_transition(build, each) for each in data.get("transitions", ())],
        **present(data, "start_state", "end_states", "max_visits"),
        **build.contained(data),
    )


def _build_transition(build: Building, data: Data) -> Transition:
    when = data.get("when")
    condition = None if when is None else build.load(when, "condition") if is_reference(when) else Expressed(when)
    return Transition(data["from"], data["to"], data.get("on", "success"), condition)


def _write(writing: Writing, step: StateMachineStep) -> dict[str, Any]:
    conditions = step.functions().get("when", {})
    transitions = [
        {"from": each["from"], "on": each["on"], "to": each["to"], **_write_when(writing, conditions.get(index))}
        for index, each in enumerate(step.rules()["transitions"])
    ]
    states = {name: writing.body(body) for name, body in step.bodies().items()}
    own = {"states": states, "start_state": step.start_state, "end_states": list(step.end_states)}
    return {**own, "transitions": transitions, **writing.options(step, "max_visits")}


def _write_when(writing: Writing, condition: Any) -> dict[str, Any]:
    if condition is None:
        return {}
    return {"when": condition.text if isinstance(condition, Expressed) else writing.named(condition, "condition")}


def _writes(*_: Any) -> Iterator[str | None]:
    yield from ("current_state", "next_state")


KIND: Final = BlueprintKind(
    spec=kinds.MACHINE,
    step=StateMachineStep,
    keys={
        "states": Key(MapOf(BODY, "state"), "The steps of each state.", required=True, runs="state"),
        "start_state": Key(TEXT, "The first state.", required=True),
        "end_states": Key(ListOf(TEXT), "The states that end the machine.", required=True),
        "transitions": Key(ListOf(_TRANSITION), "The transitions from state to state, in the order they are tried."),
        "max_visits": Key(Number(least=1, whole=True), "The most states visited; 100 by default."),
    },
    find=machines.of_machine,
    writes=_writes,
    build=_build,
    write=_write,
)
