"""Dynamic routers in blueprints."""

from __future__ import annotations

from typing import Any, Final

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.keys import ANY_AGENT, WORK
from flujo_client.blueprint.kind import BlueprintKind, Data
from flujo_client.blueprint.kinds.parallel import BRANCHES, build_branches, write_branches
from flujo_client.blueprint.shapes import Key, Table
from flujo_client.pipeline.router import DynamicParallelRouterStep

ROUTER: Final = Table(
    {"router_agent": Key(ANY_AGENT, "The agent that answers with the names of branches.", required=True), **BRANCHES},
    "a router",
)


def _build(build: Building, data: Data) -> DynamicParallelRouterStep:
    router, agent = data["router"], data["router"]["router_agent"]
    live, branches = build.agent(agent, build.name(data)), build_branches(build, router)
    return DynamicParallelRouterStep(router_agent=live, **branches, **build.working(data, build.entry(agent)))


def _write(writing: Writing, step: DynamicParallelRouterStep) -> dict[str, Any]:
    router = {"router_agent": writing.agent(step.router_agent), **write_branches(writing, step)}
    return {"router": router, **writing.working(step)}


KIND: Final = BlueprintKind(
    step=DynamicParallelRouterStep,
    keys={"router": Key(ROUTER, "The router.", required=True), **WORK},
    own_table="router",
    build=_build,
    write=_write,
)
