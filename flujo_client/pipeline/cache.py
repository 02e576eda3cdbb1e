"""Cached steps: a step whose successful result is stored, and returned again for the same input.

Its options, and the steps inside it. It must not decide when a stored result is used: workers do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

from flujo_client.pipeline.backend import CacheBackend
from flujo_client.pipeline.container import Container
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.pipeline.pipeline import Body
from flujo_client.pipeline.step import Step
from flujo_client.plan import kinds
from flujo_client.plan.identity import identify

TTL_S = 3600.0
SINGLE_FLIGHT_S = 60.0


@dataclass(frozen=True, eq=False, kw_only=True)
class CacheStep(Container):
    """Store a step's result, and use it again instead of running the step.

    Args:
        name: the name; the wrapped step's when empty.
        wrapped_step: any step or container that does not ask a person.
        cache_backend: where results are stored: a `CacheBackend`, or a reference to one; the workers' Redis when None.
        ttl_s: seconds a result is valid; 0 is forever.
        single_flight_s: seconds that equal calls wait for the one that runs the step, and as long again if that one fails or dies; with
            0 all run it. It should be longer than the step takes.
    """

    spec = kinds.CACHE

    name: str = field(default="", kw_only=False)
    wrapped_step: Step
    cache_backend: CacheBackend | str | None = None
    ttl_s: float = TTL_S
    single_flight_s: float = SINGLE_FLIGHT_S

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name and isinstance(self.wrapped_step, Step):
            object.__setattr__(self, "name", self.wrapped_step.name)

    def bodies(self) -> dict[str, Body]:
        return {"body": self.wrapped_step}

    def rules(self) -> dict[str, Any]:
        """Return the rules; the default wait is left out, so that older fingerprints stay valid."""
        waits = {} if self.single_flight_s == SINGLE_FLIGHT_S else {"single_flight_s": self.single_flight_s}
        return super().rules() | {"ttl_s": self.ttl_s} | waits

    def traits(self) -> dict[str, Any]:
        return {} if self.cache_backend is None else {"cache_backend": identify(self.cache_backend)}

    def place_inside(self, place: ContextInfo) -> ContextInfo:
        return place._replace(is_cached=True)

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        for option in ("ttl_s", "single_flight_s"):
            seconds: Any = getattr(self, option)
            if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < inf:
                yield f"{option} must be a number of seconds from 0, got {str(seconds)[:40]}"
        wrapped: Any = self.wrapped_step
        if not isinstance(wrapped, Step):
            yield f"wrapped_step must be a Step, got a {type(wrapped).__name__}; turn a pipeline into a step with as_step(name)"
