"""Optional steps in blueprints."""

from __future__ import annotations

from typing import Final

from flujo_client.blueprint.kind import BODY, BlueprintKind
from flujo_client.blueprint.shapes import Key
from flujo_client.pipeline.optional import OptionalStep

KIND: Final = BlueprintKind(step=OptionalStep, keys={"body": Key(BODY, "What may fail.", required=True)})
