"""Optional steps in blueprints."""

from __future__ import annotations

from typing import Any, Final

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.kind import BODY, BlueprintKind, Data
from flujo_client.blueprint.shapes import Key
from flujo_client.pipeline.optional import OptionalStep


def _build(build: Building, data: Data) -> OptionalStep:
    return OptionalStep(body=build.body(data["body"]), **build.contained(data))


def _write(writing: Writing, step: OptionalStep) -> dict[str, Any]:
    return {"body": writing.body(step.body)}


KIND: Final = BlueprintKind(
    step=OptionalStep,
    keys={"body": Key(BODY, "What may fail.", required=True)},
    build=_build,
    write=_write,
)
