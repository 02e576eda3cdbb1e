"""Parallel steps in blueprints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flujo_client.blueprint.branches import BRANCHES, build_branches, write_branches
from flujo_client.blueprint.build import Building
from flujo_client.blueprint.kind import BlueprintKind, Data
from flujo_client.blueprint.rules import flows
from flujo_client.pipeline.parallel import ParallelStep
from flujo_client.pipeline.step import Step
from flujo_client.plan import kinds

if TYPE_CHECKING:
    from flujo_client.blueprint.document import Writing


def _build(build: Building, data: Data) -> Step:
    return ParallelStep(**build_branches(build, data), **build.contained(data))


def _write(writing: Writing, step: ParallelStep) -> dict[str, Any]:
    return {**write_branches(writing, step)}


KIND: Final = BlueprintKind(
    spec=kinds.PARALLEL,
    step=ParallelStep,
    keys=BRANCHES,
    find=flows.of_branches,
    build=_build,
    write=_write,
)
