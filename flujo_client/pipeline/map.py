"""Maps: one pipeline for each item of a list in the context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from flujo_client.pipeline.authoring import Ruled, under
from flujo_client.pipeline.container import aliases
from flujo_client.pipeline.context_info import ContextInfo, is_dotted
from flujo_client.pipeline.parallel import FanOutStep
from flujo_client.pipeline.pipeline import Body
from flujo_client.plan import kinds


@aliases(body="pipeline_to_run", strategy="on_branch_failure")
@dataclass(frozen=True, eq=False, kw_only=True)
class MapStep(FanOutStep):
    """Run a pipeline for each item; the output is the list of its outputs, in the items' order.

    Args:
        pipeline_to_run: runs with each item as its input; alias `body`.
        iterable_input: the dotted context path of the items.
        parallel: run the items in parallel, as branches with the `merge_strategy`, `on_branch_failure` and `context_include_keys` of a
            `ParallelStep`. `max_concurrency` implies it. Otherwise items run one after the other, on one context.
        finalize: `(outputs, context)`, returns the map's output; called once, after the last item. A parameter `original_input` gets the
            map's input.
    """

    spec = kinds.MAP
    roles: ClassVar = {"output": ("finalize", "outputs, context")}

    pipeline_to_run: Body
    iterable_input: str
    parallel: bool = False  # type: ignore[assignment]  # hides the factory of that name, which a map does not need
    finalize: Callable[..., Any] | None = None

    def bodies(self) -> dict[str, Body]:
        return {"body": self.pipeline_to_run}

    def rules(self) -> dict[str, Any]:
        return super().rules() | {"iterable": self.iterable_input, "parallel": self.is_fan_out}

    @property
    def is_fan_out(self) -> bool:
        """Return whether the items run side by side."""
        return bool(self.parallel) or self.max_concurrency is not None

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        if is_dotted(self.iterable_input):
            yield from under("V-C1", place.lacks("iterable_input", self.iterable_input))
        else:
            yield Ruled(f"iterable_input {str(self.iterable_input)[:40]!r} is not a dotted path", "V-C1")
        if not self.is_fan_out:
            for name in _SIDE_BY_SIDE:
                if getattr(self, name) != getattr(type(self), name):
                    yield f"{name} is for items that run in parallel; set parallel=True or max_concurrency"


_SIDE_BY_SIDE = ("merge_strategy", "on_branch_failure", "context_include_keys")
