"""Optional steps: a body whose failure does not stop the pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from flujo_client.pipeline.container import Container
from flujo_client.pipeline.pipeline import Body
from flujo_client.plan import kinds


@dataclass(frozen=True, eq=False, kw_only=True)
class OptionalStep(Container):
    """Run a body. If it fails, the output is the step's input."""

    spec = kinds.OPTIONAL

    body: Body

    def bodies(self) -> dict[str, Body]:
        return {"body": self.body}
