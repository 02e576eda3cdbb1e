"""Dynamic routers in blueprints."""

from typing import Any, Final

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.keys import ANY_AGENT, WORK
from flujo_client.blueprint.kind import BlueprintKind, Data
from flujo_client.blueprint.kinds.parallel import BRANCHES
from flujo_client.blueprint.shapes import Key, Table
from flujo_client.pipeline.router import DynamicParallelRouterStep

ROUTER: Final = Table(
    {"router_agent": Key(ANY_AGENT, "The agent that answers with the names of branches.", required=True), **BRANCHES},
    "a router",
)


def _build(build: Building, data: Data) -> dict[str, Any]:
    agent = data["router"]["router_agent"]
    return {"router_agent": build.agent(agent, build.name(data)), **build.working(data, build.entry(agent))}


def _write(writing: Writing, step: DynamicParallelRouterStep) -> dict[str, Any]:
    return {"router_agent": writing.agent(step.router_agent)}


KIND: Final = BlueprintKind(
    step=DynamicParallelRouterStep,
    keys={"router": Key(ROUTER, "The router.", required=True), **WORK},
    own_table="router",
    build=_build,
    write=_write,
)
