"""Classes that steps and pipelines make although these classes are made of steps and pipelines.

`Step.loop_until` makes a `LoopStep`, which is a `Step`. To import each other is what this avoids: each name is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flujo_client.pipeline.cache import CacheStep
    from flujo_client.pipeline.conditional import ConditionalStep
    from flujo_client.pipeline.human import HumanInTheLoopStep
    from flujo_client.pipeline.loop import LoopStep
    from flujo_client.pipeline.map import MapStep
    from flujo_client.pipeline.nested import ImportStep
    from flujo_client.pipeline.parallel import ParallelStep
    from flujo_client.pipeline.pipeline import Pipeline
    from flujo_client.pipeline.router import DynamicParallelRouterStep
    from flujo_client.pipeline.step import Step
    from flujo_client.recipes.agentic_loop import AgenticLoopStep
    from flujo_client.recipes.tree_search import TreeSearchStep


_HOME: Final = {
    "agentic_loop": "recipes.agentic_loop.AgenticLoopStep",
    "cached": "pipeline.cache.CacheStep",
    "conditional": "pipeline.conditional.ConditionalStep",
    "gather": "pipeline.gather.gather",
    "human": "pipeline.human.HumanInTheLoopStep",
    "loop": "pipeline.loop.LoopStep",
    "map": "pipeline.map.MapStep",
    "nested": "pipeline.nested.ImportStep",
    "parallel": "pipeline.parallel.ParallelStep",
    "pipeline": "pipeline.pipeline.Pipeline",
    "refine_until": "recipes.refine.refine_until",
    "router": "pipeline.router.DynamicParallelRouterStep",
    "tree_search": "recipes.tree_search.TreeSearchStep",
}


class Forward:
    """The classes by name."""

    agentic_loop: type[AgenticLoopStep]
    cached: type[CacheStep]
    conditional: Callable[..., ConditionalStep]
    gather: Callable[[str, Sequence[str], dict[str, Any]], Step]
    human: type[HumanInTheLoopStep]
    loop: Callable[..., LoopStep]
    map: type[MapStep]
    nested: type[ImportStep]
    parallel: Callable[..., ParallelStep]
    pipeline: type[Pipeline]
    refine_until: Callable[..., LoopStep]
    router: type[DynamicParallelRouterStep]
    tree_search: type[TreeSearchStep]

    def __getattr__(self, name: str) -> Any:
        module, _, attribute = f"flujo_client.{_HOME[name]}".rpartition(".")
        found = getattr(import_module(module), attribute)
        setattr(self, name, found)
        return found


forward = Forward()
