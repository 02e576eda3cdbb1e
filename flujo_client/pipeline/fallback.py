"""Fallbacks in plans: `Step(..., fallback_step=other)` becomes a container, so that a fallback nests in everything, and everything in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flujo_client.pipeline.container import Container
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.pipeline.step import Step
from flujo_client.plan import kinds

if TYPE_CHECKING:
    from flujo_client.pipeline.pipeline import Body

PRIMARY, FALLBACK = "primary", "fallback"


@dataclass(frozen=True, eq=False, kw_only=True)
class FallbackStep(Container):
    """A step with its fallback, under its name."""

    spec = kinds.FALLBACK

    primary: Step
    """The step as the author wrote it."""

    def bodies(self) -> dict[str, Body]:
        other: Any = self.primary.fallback_step
        bodies: dict[str, Body] = {PRIMARY: replace(self.primary, fallback_step=None)}
        return bodies | {FALLBACK: other} if isinstance(other, Step) else bodies

    def rules(self) -> dict[str, Any]:
        return super().rules() | {"diagnostics": self.primary.config.preserve_fallback_diagnostics}

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        other: Any = self.primary.fallback_step
        if not isinstance(other, Step):
            yield f"fallback_step must be a Step, got a {type(other).__name__}; turn a pipeline into a step with as_step(name)"
