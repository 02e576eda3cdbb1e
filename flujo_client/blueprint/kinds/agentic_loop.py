"""Agentic loops in blueprints."""

from typing import Any, Final

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.keys import ANY_AGENT, RegistryShape
from flujo_client.blueprint.kind import BlueprintKind, Data
from flujo_client.blueprint.shapes import COUNT, FLAG, Key, Number, OneOf
from flujo_client.blueprint.value_types import TEMPLATE
from flujo_client.pipeline.compiled_text import Templated
from flujo_client.recipes.agentic_loop import FAILURES as AGENT_FAILURES
from flujo_client.recipes.agentic_loop import MAX_TURNS, PLANNER, AgenticLoopStep


def _build(build: Building, data: Data) -> dict[str, Any]:
    mapper = {"loop_output_mapper": Templated(data["output_template"])} if "output_template" in data else {}
    registry = {name: build.working_agent(name, each) for name, each in data["registry"].items()}
    return {"planner": build.working_agent(PLANNER, data["planner"]), "registry": registry, **mapper}


def _write(writing: Writing, step: AgenticLoopStep) -> dict[str, Any]:
    registry = {name: writing.agent_of(name, each) for name, each in step.registry.items()}
    found = {"planner": writing.agent_of(PLANNER, step.planner), "registry": registry}
    mapper = step.loop_output_mapper
    if isinstance(mapper, Templated):
        found["output_template"] = mapper.value
    elif mapper is not None:
        writing.cannot("its loop_output_mapper is a function; a blueprint can only hold an output_template")
    return found


KIND: Final = BlueprintKind(
    step=AgenticLoopStep,
    keys={
        "planner": Key(ANY_AGENT, "The agent that decides the next step, as an `AgentCommand`.", required=True),
        "registry": Key(
            RegistryShape(ANY_AGENT, "agent"), "The agents that the planner may use, by name.", required=True
        ),
        "max_loops": Key(COUNT, f"The most turns; {MAX_TURNS} by default."),
        "fails_at_max": Key(FLAG, "Fail when `max_loops` is reached."),
        "on_agent_failure": Key(
            OneOf(AGENT_FAILURES), "`abort`: the loop fails; `tell`: the planner gets the error. `abort` by default."
        ),
        "ask_expires_s": Key(
            Number(above=0),
            "Seconds that a person has to answer; then the planner gets an error. Unlimited by default.",
        ),
        "output_template": Key(
            TEMPLATE,
            "The loop's output as a template, where `previous_step` is the final answer; the final answer by default.",
            after=True,
        ),
    },
    asks_people=True,
    build=_build,
    write=_write,
)
