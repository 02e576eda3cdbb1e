"""Pipelines: steps in a row. `a >> b` makes one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flujo_client.pipeline.step import Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Steps to run one after the other, each with the output of the one before.

    Args:
        steps: what to run, in order.
        name: what the runs are listed under; the attribute's name in its module when None.
        version: yours; kept with every run.
        context_model: the pydantic model of the runs' context. Without one, context data becomes a `PipelineContext`.
    """

    steps: Sequence[Step]
    name: str | None = None
    version: str = "latest"
    context_model: type[BaseModel] | None = None

    @classmethod
    def from_step(cls, step: Step, **rest: Any) -> Pipeline:
        """A pipeline of one step."""
        return cls([step], **rest)

    def __rshift__(self, other: Step | Pipeline) -> Pipeline:
        tail = [other] if isinstance(other, Step) else list(other.steps)
        return replace(self, steps=[*self.steps, *tail])
