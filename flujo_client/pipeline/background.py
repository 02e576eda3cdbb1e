"""Background steps in plans: `StepConfig(execution_mode="background")` becomes a container, so that any step can be one, wherever it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flujo_client.pipeline.container import Container
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.pipeline.step import Step
from flujo_client.plan import kinds

if TYPE_CHECKING:
    from flujo_client.pipeline.pipeline import Body

LOST = ("updates_context", "sink_to")
"""Options that would write to the context of a pipeline that has continued."""


@dataclass(frozen=True, eq=False, kw_only=True)
class BackgroundStep(Container):
    """A step in the background, under its name."""

    spec = kinds.BACKGROUND

    task: Step
    """The step as the author wrote it."""

    def bodies(self) -> dict[str, Body]:
        return {"body": replace(self.task, config=self.task.config.model_copy(update={"execution_mode": "sync"}))}

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        for option in LOST:
            if getattr(self.task, option):
                yield f"it runs in the background, which returns no output, so {option} has no effect: leave it out, or put the step with the one that reads it into a pipeline, and run that in the background"
